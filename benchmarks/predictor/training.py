"""``python -m benchmarks.predictor.training``: trains again and again; prints a line at first."""

from __future__ import annotations

import sys
from itertools import count

from benchmarks.predictor.served import fit_model


def main() -> None:
    """Train until it is killed."""
    for seed in count():
        fit_model(seed, members=5, hidden=64)
        if seed == 0:
            sys.stdout.write("trains\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
