"""``python -m benchmarks.guard``: test the guard and the precision flag on the real daemon.

``faults`` runs agents with injected faults and healthy agents, in FP16 on the CPU. It reports which
trigger fired, when, and how many healthy agents were rolled back to FP32. ``flips`` measures how
long running jobs take from a change of the flag to FP32, under load.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import quantiles

from benchmarks.guard.agents import FAULTS, HEALTHY, STORMS
from benchmarks.guard.flips import Flip, measure_flips
from benchmarks.guard.trials import TrialResult, run_trials

OUTPUT = Path("benchmark_results")
LONGEST_SECONDS = 3600.0
LOAD = 4  # workers that train at the same time while the flag changes


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write ``guard_faults.csv`` or ``guard_flips.csv``; 1 if a result is wrong."""
    options = _parse(arguments)
    with tempfile.TemporaryDirectory(prefix="genesis-guard-") as name:
        folder = options.keep or Path(name)
        if options.what == "faults":
            return _faults(folder, options)
        return _flips(folder, options)


def _faults(folder: Path, options: argparse.Namespace) -> int:
    healthy = dict(list(HEALTHY.items())[: options.healthy])
    outcomes = []
    for name, plans, settings in (
        ("usual", {**FAULTS, **healthy}, {}),
        ("hasty-scale", dict(STORMS), {"FP16_GROWTH_INTERVAL": 2}),
    ):
        outcomes += run_trials(
            plans, folder / name, pairs=options.pairs, seconds=LONGEST_SECONDS, settings=settings
        )
        print(f"{name}: {len(plans)} agents finished", flush=True)
    _write(options.output / "guard_faults.csv", [_trial_row(outcome) for outcome in outcomes])
    print(format_trials(outcomes))
    return 0 if all(outcome.is_correct for outcome in outcomes) else 1


def format_trials(outcomes: Iterable[TrialResult]) -> str:
    """Return a table of the agents with faults or alarms, and a line about the healthy ones."""
    outcomes = list(outcomes)
    rows: list[tuple[str, ...]] = [
        ("agent", "expected", "fired", "onset", "step", "seconds", "runs")
    ]
    for each in outcomes:
        if each.expected or each.fired:
            found = (each.agent, each.expected or "none", each.fired or "none")
            numbers = (each.onset, each.step, each.seconds, each.runs)
            rows.append((*found, *("" if number is None else f"{number}" for number in numbers)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    healthy = [outcome for outcome in outcomes if not outcome.expected]
    false = sum(bool(outcome.fired) for outcome in healthy)
    runs = sum(outcome.runs for outcome in healthy)
    lines.append(f"{false} false alarms in {runs} runs of {len(healthy)} healthy agents")
    return "\n".join(lines)


def _flips(folder: Path, options: argparse.Namespace) -> int:
    agents = list(HEALTHY)[:LOAD]
    flips = measure_flips(agents, folder, changes=options.changes, seed=options.seed)
    _write(options.output / "guard_flips.csv", [asdict(flip) for flip in flips])
    for precision in ("fp32", "fp16"):
        print(format_flips(precision, flips))
    return 0


def format_flips(precision: str, flips: Iterable[Flip]) -> str:
    """Return one line: number, median, 95th percentile and slowest flip."""
    seconds = sorted(flip.seconds for flip in flips if flip.to == precision)
    percentiles = quantiles(seconds, n=100, method="inclusive")
    return (
        f"flag to {precision}: {len(seconds)} flips of {LOAD} workers at once, "
        f"p50 {percentiles[49]:.2f} s, p95 {percentiles[94]:.2f} s, longest {seconds[-1]:.2f} s"
    )


def _trial_row(result: TrialResult) -> dict[str, object]:
    row = asdict(result)
    return {**row, "said": row.pop("reason")}  # the column has this name


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as output:
        writer = csv.DictWriter(output, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard", description=__doc__)
    parser.add_argument("what", choices=("faults", "flips"))
    parser.add_argument(
        "--healthy", type=int, default=len(HEALTHY), help="number of healthy agents"
    )
    parser.add_argument(
        "--pairs", type=int, default=3, help="runs of each healthy agent, each with a baseline run"
    )
    parser.add_argument(
        "--changes", type=int, default=50, help="changes of the flag to FP32, and back"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the times of the changes")
    parser.add_argument("--keep", type=Path, help="folder of the daemons; default: a temporary one")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the CSV file")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
