"""``python -m benchmarks.se_darwin.mining.space``: candidates of each kind on our own corpus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from agents.se_darwin.corpus import load_subjects
from agents.se_darwin.edits import EDIT_KINDS, EditSpace


def candidates(functions: Iterable[tuple[str, str]]) -> tuple[int, Counter[str]]:
    """Return the number of *functions*, and how many single edits of each kind they have.

    Args:
        functions: Source of a program, and name of a function in it.
    """
    spaces = [EditSpace(source, function) for source, function in functions]
    return len(spaces), Counter(edit.kind for space in spaces for edit in space.edits)


def table(number: int, kinds: Counter[str]) -> list[str]:
    """Return the rows of the mean number of candidates of a function, in Markdown."""
    total = max(1, kinds.total())
    rows = ["| kind | candidates | % |", "|---|---|---|"]
    for kind in sorted(EDIT_KINDS, key=lambda kind: -kinds[kind]):
        mean, share = kinds[kind] / max(1, number), 100 * kinds[kind] / total
        rows.append(f"| `{kind}` | {mean:.1f} | {share:.1f} |")
    return [*rows, f"| all {len(EDIT_KINDS)} | {total / max(1, number):.1f} | 100 |"]


if __name__ == "__main__":
    found = candidates((each.source, each.function) for each in load_subjects())
    print(f"{found[0]} functions", *table(*found), sep="\n")
