"""``python -m benchmarks.world_model``: world models beside what a person would take instead.

Each data set becomes the records of an agent, which trains with the daemon's defaults. Every seed
draws its own held-out groups, the same for the peers. A measurement that is kept is not repeated;
the tables are made of what is kept. Choices are made with ``--sets tuning`` only.
"""

from __future__ import annotations

import argparse
import sys
import traceback
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.not_run import NotRunError
from benchmarks.world_model.catalogue import DATA_SETS, GROUPS, choose
from benchmarks.world_model.measure import OURS, PEERS, Side, measure
from benchmarks.world_model.report import Measured, report
from benchmarks.world_model.results import Results

QUICK_SEEDS, SEEDS = 2, 5
_SIDES: Sequence[Side] = (OURS, PEERS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not kept yet, and print the tables; 1 if a measurement failed."""
    options = _parser().parse_args(arguments)
    seeds = options.seeds or list(range(QUICK_SEEDS if options.quick else SEEDS))
    try:
        chosen = choose(options.sets)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    results, failed = Results(options.results), False
    for seed in seeds:
        for data_set in chosen:
            for side in options.sides:
                key = (side, data_set.name, seed, options.quick)
                if key in results and not options.again:
                    continue
                try:
                    record = _in_a_process(*key)
                except NotRunError as error:
                    print(f"{data_set.name}: not measured: {error}", file=sys.stderr)
                except Exception:
                    failed = True
                    print(f"{data_set.name}, seed {seed}, {side}: failed", file=sys.stderr)
                    traceback.print_exc()
                else:
                    results.keep(record)
                    print(f"{data_set.name}, seed {seed}, {side}: measured", file=sys.stderr)
    torch.set_num_threads(1)
    print(*describe(torch.device("cpu")).values(), sep=", ")
    tables = [Measured.of(results, data_set, seeds, options.quick) for data_set in chosen]
    for table in report(tables):
        print(f"\n{table}")
    return int(failed)


def _in_a_process(side: Side, name: str, seed: int, quick: bool) -> dict[str, object]:
    """Measure in a process of its own, so that its memory is that of one fit."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, side, name, seed, quick).result()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.world_model", description=__doc__)
    parser.add_argument(
        "--sets",
        nargs="+",
        default=["report"],
        metavar="SET",
        help=f"{', '.join(GROUPS)}, or: {', '.join(DATA_SETS)}",
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="0 to 4; with --quick 0 and 1")
    parser.add_argument("--quick", action="store_true", help="3,000 rows of each set, two seeds")
    parser.add_argument("--sides", nargs="+", choices=_SIDES, default=_SIDES)
    parser.add_argument("--again", action="store_true", help="measure also what is kept")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("benchmark_results/world_model"),
        metavar="FOLDER",
        help="where measurements are kept",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
