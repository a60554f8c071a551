"""``python -m benchmarks.se_darwin``: measure the world model for SE-Darwin."""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from benchmarks.measuring.machine import describe
from benchmarks.se_darwin.dataset import FULL, QUICK, build_dataset, open_caching_sandbox
from benchmarks.se_darwin.report import Report
from benchmarks.se_darwin.run import run_all

OUTPUT = Path("benchmark_results")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write the CSV files and the plot."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.se_darwin", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few functions: a preview, not a proof"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of bugs, weights and draws")
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="folder of the CSV files and the plot"
    )
    parser.add_argument(
        "--parallel", type=int, default=1, help="programs that run at the same time"
    )
    options = parser.parse_args(arguments)
    for library in ("sklearn", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            print(f"not run: {library} is not installed; make bench-se-darwin installs it")
            return 1
    torch.set_num_threads(1)
    machine = describe(torch.device("cpu"))
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)

    started = time.monotonic()

    def log(line: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {line}", flush=True)

    report = Report(folder=options.output, quick=options.quick)
    effort = QUICK if options.quick else FULL
    cache = options.output / ".cache" / "executions.sqlite"
    with closing(open_caching_sandbox(cache, options.parallel)) as sandbox:
        data = build_dataset(sandbox, effort, options.seed, log)
        log(f"{sandbox.executed} programs run; the results of the others were cached")
        run_all(sandbox, data, effort, options.seed, report, log)
    log(f"written to {options.output}: {', '.join(report.written)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
