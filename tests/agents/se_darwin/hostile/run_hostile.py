"""Runs hostile programs in a sandbox, as whoever starts it; one JSON document in, one out."""

import ctypes
import json
import os
import sys
import time
from dataclasses import replace

import psutil

from agents.se_darwin.jail import call_filter
from agents.se_darwin.sandbox import Exam, Limits, Sandbox, TestCase

HONEST = "def solve(x):\n    return x + 1\n"
TESTS = """
from program import solve

def test_small():
    assert solve(0) == 1
    assert solve(1) == 2

def test_large():
    assert solve(2) == 3
"""
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: what loses its parent becomes a child of this
LIMITS = Limits(cpu_seconds=0.1, wall_seconds=1.0)


def forbid_namespaces() -> None:
    """As a container's usual seccomp profile does, to this process and its children."""
    abi, clone, prlimit, _ = call_filter._MACHINES[os.uname().machine]
    unshare = range(272, 273) if os.uname().machine == "x86_64" else range(97, 98)
    call_filter._MACHINES = {os.uname().machine: (abi, clone, prlimit, (unshare,))}
    call_filter._EVERYWHERE = ()
    if (state := call_filter.filter_calls()) != "on":
        raise OSError(state)


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt what outlives the sandbox")
    if "--no-namespaces" in sys.argv:
        forbid_namespaces()
    programs = json.load(sys.stdin)
    report = {}
    with Sandbox(modules=["builtins", "json", "shutil", "subprocess"], parallel=4) as sandbox:
        cases = [TestCase.returning((number,), number + 1) for number in range(3)]
        exam = Exam.prepare(TESTS, program=HONEST, module="program", function="solve")
        exam = replace(exam, checks=sandbox.collect(exam, function="solve", limits=LIMITS))
        for name, source in programs.items():
            started = time.monotonic()
            judged = [
                [case.passes(output) for case, output in zip(tests, run.outputs, strict=True)]
                for tests, material in ((cases, cases), (exam.cases(), exam))
                for run in sandbox.run([source, HONEST], material, function="solve", limits=LIMITS)
            ]
            report[name] = {
                "passed": any(judged[0] + judged[2]),
                "neighbour": all(judged[1] + judged[3]),
                "seconds": time.monotonic() - started,
            }
        report["restarts"] = sandbox.restarts
        report["layers"] = sandbox.layers
    report["left"] = [
        " ".join(process.cmdline())
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE
    ]
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
