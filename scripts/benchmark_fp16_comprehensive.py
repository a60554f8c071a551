"""Run the scenarios in both half types, then the step benchmark; ``--help`` lists options."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # benchmarks/ is not installed

from benchmarks.scenarios import __main__ as scenarios
from benchmarks.step import __main__ as step


def main() -> int:
    """Run both; write CSV files and plots to one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--cpu-half", action="store_true", help="half precision on a CPU too")
    parser.add_argument("--quick", action="store_true", help="few rounds: a preview, not a proof")
    parser.add_argument(
        "--output", default=str(step.OUTPUT), help="folder of the CSV files and plots"
    )
    options = parser.parse_args()
    shared = ["--device", options.device, "--output", options.output]
    halves = ["--precision", "bf16", "fp16", *(["--cpu-half"] if options.cpu_half else [])]
    rounds = ["--rounds", "1"] if options.quick else []
    scenarios.main([*shared, *halves, *rounds])
    return step.main([*shared, *(["--quick"] if options.quick else [])])


if __name__ == "__main__":
    raise SystemExit(main())
