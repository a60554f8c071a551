"""Runs hostile programs in a sandbox, as whoever starts it; one JSON document in, one out."""

import json
import sys
import time

from agents.se_darwin.sandbox import Limits, Sandbox, TestCase


def main() -> None:
    programs = json.load(sys.stdin)
    tests = [TestCase.returning((number,), number + 1) for number in range(3)]
    honest = "def solve(x):\n    return x + 1\n"
    report = {}
    with Sandbox(modules=["builtins", "json", "shutil", "subprocess"]) as sandbox:
        for name, source in programs.items():
            started = time.monotonic()
            judged = [
                [test.passes(output) for test, output in zip(tests, run.outputs, strict=True)]
                for run in sandbox.run(
                    [source, honest],
                    tests,
                    function="solve",
                    limits=Limits(cpu_seconds=0.1, wall_seconds=1.0),
                )
            ]
            report[name] = {
                "passed": any(judged[0]),
                "neighbour": all(judged[1]),
                "seconds": time.monotonic() - started,
            }
        report["restarts"] = sandbox.restarts
        report["layers"] = sandbox.layers
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
