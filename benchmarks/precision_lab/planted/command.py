"""``planted``: how often `bisect` names the place of a planted fault first."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.precision_lab.planted.faults import REPORTED, Planted, healthy, plant
from benchmarks.precision_lab.planted.flipping import Flipped, flip_one_at_a_time
from infrastructure.precision_lab.bisect import Bisection, bisect

COLUMNS = (
    "fault", "half", "error", "first", "right", "all_right", "culprits", "runs",
    "flipping_first", "flipping_right", "flipping_cures", "flipping_runs",
    "cpu_seconds", "flipping_cpu_seconds",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Search every planted fault and every healthy model, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.precision_lab planted")
    parser.add_argument("--seed", type=int, default=0, help="seed of the faults (default: 0)")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results/precision_lab"))
    parser.add_argument("--only", nargs="*", help="names of faults; by default all and 12 healthy")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    rows = []
    for planted in subjects(options.seed, options.only):
        rows.append(measure(planted))
        print(format_table(rows[-1:], COLUMNS), flush=True)
    write_csv(options.output / f"planted_seed{options.seed}.csv", rows, COLUMNS)
    machine = " ".join(describe(torch.device("cpu")).values())
    print(f"\n{format_table(rows, COLUMNS)}\n\n{summary(rows)}\n{machine}")
    return 0


def subjects(seed: int, only: Sequence[str] | None) -> Iterator[Planted]:
    """Every fault in each half type in which it occurs, then twelve healthy models."""
    for family, halves in REPORTED.items():
        for half in halves:
            if not only or family.__name__ in only:
                yield plant(family, seed, half)
    for number in range(12):
        if not only or "healthy" in only:
            yield healthy(number, seed)


def measure(planted: Planted) -> dict[str, str]:
    """A row of the table: the search, and flipping one place at a time."""
    started = time.process_time()
    found = bisect(planted.experiment, planted.precisions)
    searched = time.process_time()
    flipped = flip_one_at_a_time(planted)
    return _row(planted, found, flipped) | {
        "cpu_seconds": f"{searched - started:.2f}",
        "flipping_cpu_seconds": f"{time.process_time() - searched:.2f}",
    }


def _row(planted: Planted, found: Bisection, flipped: Flipped) -> dict[str, str]:
    places = [each.place for each in found.culprits]
    first = places[0] if places else None

    def right(named: object) -> str:
        if not planted.places:
            return "yes" if named is None else "no"
        return "yes" if named in planted.places else "no"

    return {
        "fault": planted.name,
        "half": planted.half,
        "error": f"{found.half.ratio:.1f}",
        "first": str(first or ""),
        "right": right(first),
        "all_right": "yes" if set(places) == planted.places else "no",
        "culprits": str(len(places)),
        "runs": str(found.runs),
        "flipping_first": str(flipped.place or ""),
        "flipping_right": right(flipped.place),
        "flipping_cures": "yes" if flipped.cures else "no",
        "flipping_runs": str(flipped.runs),
    }


def summary(rows: Sequence[dict[str, str]]) -> str:
    """How many were right. A fault counts if its place is named first in every half type."""
    sound = [row for row in rows if row["fault"] == "healthy"]
    faulty = [row for row in rows if row["fault"] != "healthy"]

    def faults(column: str) -> str:
        names = {row["fault"] for row in faulty}
        wrong = {row["fault"] for row in faulty if row[column] == "no"}
        cases = sum(row[column] == "yes" for row in faulty)
        return f"{len(names - wrong)} of {len(names)} faults ({cases} of {len(faulty)} cases)"

    def healthy_ones(column: str) -> str:
        return f"{sum(row[column] == 'no' for row in sound)} of {len(sound)}"

    def cost(prefix: str) -> str:
        runs = [int(row[f"{prefix}runs"]) for row in searched]
        seconds = sum(float(row[f"{prefix}cpu_seconds"]) for row in faulty)
        each = f"{min(runs)} to {max(runs)}" if runs else "no"
        return f"{each} repetitions where there is something to search, {seconds:.0f} CPU s"

    searched = [row for row in faulty if row["culprits"] != "0"]
    errors = sorted(float(row["error"]) for row in sound)
    return "\n".join(
        [
            f"bisect: the right place first in {faults('right')}, exactly the right places in "
            f"{faults('all_right')}; a false culprit in {healthy_ones('right')} healthy models",
            f"one at a time: the right place first in {faults('flipping_right')}, cured "
            f"{faults('flipping_cures')}; a false culprit in {healthy_ones('flipping_right')} "
            "healthy models",
            f"bisect: {cost('')}; one at a time: {cost('flipping_')}",
            *([f"healthy: {errors[0]:g} to {errors[-1]:g} x the noise floor"] if errors else []),
        ]
    )
