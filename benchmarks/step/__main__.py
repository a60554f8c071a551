"""``python -m benchmarks.step``: compare the training step with other loops; check limits."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.plot import plot_bars
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.table import write_csv
from benchmarks.step import report
from benchmarks.step.cases import list_cases
from benchmarks.step.figures import FULL, QUICK, measure_figures
from benchmarks.step.measure import measure
from benchmarks.step.models import SIZES
from benchmarks.step.results import Case, Measured, Result
from infrastructure.training.precision import resolve_device

OUTPUT = Path("benchmark_results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write ``step.csv``, ``findings.csv`` and ``step.png``."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    device = resolve_device(options.device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Accelerate and CUDA's counters use the current device
    effort = QUICK if options.quick else FULL
    rounds = effort.cuda_rounds if device.type == "cuda" else effort.cpu_rounds
    machine = describe(device)
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)

    results: dict[Case, Result] = {}
    for name in options.sizes or _default_sizes(device):
        cases = list_cases([name])
        results |= measure(SIZES[name], cases, device, rounds=rounds, seed=options.seed)
        print(f"\n{report.format_steps([results[case] for case in cases], machine)}", flush=True)
    figures = list(measure_figures(results, device, effort, options.seed))
    print(f"\n{report.format_figures(figures)}\n")

    rows = report.step_rows(results.values(), machine)
    write_csv(options.output / "step.csv", rows, report.STEP_COLUMNS)
    rows = report.figure_rows(figures, machine)
    write_csv(options.output / "findings.csv", rows, report.FIGURE_COLUMNS)
    print(f"written to {options.output}: step.csv, findings.csv, {_plot(options.output, results)}")
    return 0


def _default_sizes(device: torch.device) -> list[str]:
    return [name for name in SIZES if name != "large" or device.type != "cpu"]


def _plot(folder: Path, results: dict[Case, Result]) -> str:
    groups: dict[str, dict[str, float]] = {}
    for case, result in results.items():
        if isinstance(result, Measured):
            label = str(case)
            if result.effective != case.precision:
                label += f" (computed {result.effective})"
            milliseconds = 1000.0 * Spread.of(result.seconds).median
            groups.setdefault(case.size, {})[label] = milliseconds
    try:
        plot_bars(folder / "step.png", "one training step", "ms", groups)
    except NotRunError as error:
        return f"no plot: {error}"
    return "step.png"


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.step", description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument(
        "--sizes", nargs="+", choices=SIZES, help="default: all, large on accelerators only"
    )
    parser.add_argument("--quick", action="store_true", help="few rounds: a preview, not a proof")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights, data and orders")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="folder of the CSV files and the plot"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
