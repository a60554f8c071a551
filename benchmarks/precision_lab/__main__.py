"""``python -m benchmarks.precision_lab COMMAND``: measurements of the precision lab.

``hypotheses`` tests the four hypotheses of document 004. ``planted`` plants faults of half
precision into models and lets `bisect` find them. Each command has options of its own, see
``COMMAND --help``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from benchmarks.precision_lab.hypotheses.command import main as hypotheses
from benchmarks.precision_lab.planted.command import main as planted

_COMMANDS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "hypotheses": hypotheses,
    "planted": planted,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names."""
    given = sys.argv[1:] if arguments is None else [*arguments]
    if not given or given[0] not in _COMMANDS:
        print(f"usage: python -m benchmarks.precision_lab {{{','.join(_COMMANDS)}}}")
        return 0 if given[:1] in (["-h"], ["--help"]) else 2
    return _COMMANDS[given[0]](given[1:])


if __name__ == "__main__":
    sys.exit(main())
