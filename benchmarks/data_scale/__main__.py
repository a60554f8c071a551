"""``python -m benchmarks.data_scale``: memory and speed of a run on many transitions."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.data_scale.steps import STEPS, measure
from benchmarks.measuring.table import format_table, write_csv

OUTPUT = Path("benchmark_results")
_COLUMNS = ("step", "rows", "measured", "value")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do each step in a process of its own; print and save what it measured."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.data_scale", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    parser.add_argument("--home", type=Path, help="folder of the data, which stays; some 10 GB")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the CSV file")
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)  # in the process of a step
    options = parser.parse_args(arguments)
    if options.only:
        print(json.dumps(measure(options.only, options.home, options.rows)))
        return 0
    table = list[dict[str, str]]()
    with tempfile.TemporaryDirectory() as temporary:
        home = options.home or Path(temporary)
        for step in options.steps:
            command = [sys.executable, "-m", "benchmarks.data_scale", "--only", step]
            command += ["--home", str(home), "--rows", str(options.rows)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            measured = json.loads(output.splitlines()[-1])
            own = [
                {"step": step, "rows": str(options.rows), "measured": name, "value": f"{value:.4g}"}
                for name, value in measured.items()
            ]
            print(format_table(own, _COLUMNS), end="\n\n", flush=True)
            table += own
    write_csv(options.output / "data_scale.csv", table, _COLUMNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
