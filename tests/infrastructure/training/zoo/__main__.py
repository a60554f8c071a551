"""Every specimen with every optimizer in every precision, against the textbook loop.

Run as ``python -m tests.infrastructure.training.zoo``.

Minutes; the suite runs each specimen with one optimizer only. Prints the largest difference of a
parameter between the textbook's loop and ours, and fails if one is above the tolerance.
"""

from __future__ import annotations

import argparse
import fnmatch
import logging
import sys
import warnings

import structlog
import torch

from infrastructure.training import Precision
from tests.infrastructure.training.zoo.loops import largest_difference, ours, textbook
from tests.infrastructure.training.zoo.specimens import OPTIMIZERS, SPECIMENS

# Adaptive optimizers normalise gradients that are nothing but rounding; so the first step is held
# to the learning rate at most, and mostly the difference is a thousandth of it.
LARGEST = 2e-2


def main() -> int:
    """Run the chosen combinations; the number that differ, at most 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--specimens", default="*", help="pattern of their names")
    parser.add_argument("--optimizers", default="*", help="pattern of their names")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    torch.set_num_threads(1)
    wrong = count = 0
    for name in fnmatch.filter(SPECIMENS, options.specimens):
        for optimizer in fnmatch.filter(OPTIMIZERS, options.optimizers):
            found = []
            for precision in Precision:
                expected, got = (
                    loop(SPECIMENS[name], precision, options.steps, OPTIMIZERS[optimizer])
                    for loop in (textbook, ours)
                )
                found.append(largest_difference(expected.states[-1], got.states[-1]))
            count += 1
            wrong += not max(found) <= LARGEST
            differences = "  ".join(f"{each:8.1e}" for each in found)
            sys.stdout.write(f"{name:32} {optimizer:14} {differences}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count} combinations, each in {len(Precision)} precisions: {wrong} differ\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
