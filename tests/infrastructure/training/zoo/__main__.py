"""Every specimen with every optimizer in every precision, against the textbook loop.

Run as ``python -m tests.infrastructure.training.zoo``.

Minutes; the suite runs each specimen with one optimizer only. Prints the largest difference of a
loss between the textbook's loop and ours, in FP32, FP16 and BF16, and fails if one is too large.

Losses, because an adaptive optimizer turns the rounding of a gradient that is truly zero, as of a
key's bias in attention or of a bias before batch normalisation, into whole steps. The loss does not
depend on such a parameter.
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
from tests.infrastructure.training.zoo.loops import ours, textbook
from tests.infrastructure.training.zoo.specimens import OPTIMIZERS, SPECIMENS

LARGEST = 1e-2


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
                pairs = zip(expected.losses, got.losses, strict=True)
                found.append(max(abs(first - second) for first, second in pairs))
            count += 1
            wrong += not max(found) <= LARGEST
            differences = "  ".join(f"{each:8.1e}" for each in found)
            sys.stdout.write(f"{name:32} {optimizer:14} {differences}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count} combinations, each in {len(Precision)} precisions: {wrong} differ\n")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
