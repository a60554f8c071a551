"""``python -m benchmarks.rungs [trainings]``: the search for the smallest rung, or trainings."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.rungs import search, trainings


def main() -> None:
    """Measure one of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("search", "trainings"), default="search")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--healthy", type=int, help="number of healthy models, by default 20 or 60")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("benchmark_results/rungs.ndjson"),
        help="a line for each training; those in it are not repeated",
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "search":
        search.measure(arguments.seed, 20 if arguments.healthy is None else arguments.healthy)
    else:
        healthy = 60 if arguments.healthy is None else arguments.healthy
        trainings.measure(arguments.seed, healthy, arguments.out)


if __name__ == "__main__":
    main()
