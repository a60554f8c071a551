"""``python -m benchmarks.se_darwin.mining REPOSITORY...``: what each kind of edit repairs."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from agents.se_darwin.edits import EDIT_KINDS
from benchmarks.se_darwin.mining.history import repairs
from benchmarks.se_darwin.mining.reach import EXCHANGES, Reach, reach


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the repairs in the histories of git repositories and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.se_darwin.mining", description=main.__doc__
    )
    parser.add_argument("repositories", type=Path, nargs="+", help="git directories")
    parser.add_argument("--most", type=int, default=70, help="changes of each repository")
    options = parser.parse_args(arguments)
    found: list[Reach] = []
    for repository in options.repositories:
        changes = (change for change in repairs(repository) if change.is_in_scope)
        reached = (each for each in map(reach, changes) if each is not None)
        own = list(islice(reached, options.most))
        found += own
        print(f"{repository}: {len(own)} changes", flush=True)
    print("\n".join(table(found)))
    return 0


def table(found: Sequence[Reach]) -> list[str]:
    """Return the rows of the ablation, in Markdown."""

    def count(kinds: Sequence[str]) -> int:
        return sum(each.is_made_by(kinds) for each in found)

    space: Counter[str] = Counter()
    for each in found:
        space.update(each.space)
    mean = {kind: space[kind] / max(1, len(found)) for kind in EDIT_KINDS}
    exchanged, everything = count(EXCHANGES), count(EDIT_KINDS)
    rows = [
        "| kind | candidates | repairs added to the exchanges | repairs lost without it |",
        "|---|---|---|---|",
        f"| the {len(EXCHANGES)} exchanges | {sum(mean[kind] for kind in EXCHANGES):.1f} "
        f"| {exchanged} of {len(found)} |  |",
    ]
    added = [kind for kind in EDIT_KINDS if kind not in EXCHANGES]
    for kind in sorted(added, key=lambda kind: -count([*EXCHANGES, kind]) / (1 + mean[kind])):
        lost = everything - count([each for each in EDIT_KINDS if each != kind])
        gained = count([*EXCHANGES, kind]) - exchanged
        rows.append(f"| `{kind}` | {mean[kind]:.1f} | {gained} | {lost} |")
    total = sum(mean.values())
    return [*rows, f"| all {len(EDIT_KINDS)} | {total:.1f} | {everything} of {len(found)} |  |"]


if __name__ == "__main__":
    raise SystemExit(main())
