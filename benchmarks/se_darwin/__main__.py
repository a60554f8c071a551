"""``python -m benchmarks.se_darwin``: every figure of the world model for SE-Darwin."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.se_darwin.dataset import FULL, QUICK, build_dataset, open_recording
from benchmarks.se_darwin.report import Report
from benchmarks.se_darwin.run import run_all

OUTPUT = Path("benchmark_results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the CSV files and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few functions: a look, no proof")
    parser.add_argument("--seed", type=int, default=0, help="of bugs, weights and draws")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of CSV and plot")
    parser.add_argument("--parallel", type=int, default=1, help="programs run at a time")
    options = parser.parse_args(arguments)
    for library in ("sklearn", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            print(f"not run: {library} is not installed: make bench-se-darwin installs it")
            return 1
    torch.set_num_threads(1)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)

    started = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    report = Report(folder=options.output, quick=options.quick)
    effort = QUICK if options.quick else FULL
    record = options.output / ".cache" / "executions.sqlite"
    with closing(open_recording(record, options.parallel)) as box:
        data = build_dataset(box, effort, options.seed, say)
        say(f"{box.executed} programs run, the others were on record")
        run_all(box, data, effort, options.seed, report, say)
    say(f"written to {options.output}: {', '.join(report.written)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
