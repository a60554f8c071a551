"""Run hostile programs in a sandbox as the current user; one JSON document in, one out."""

import ctypes
import json
import os
import sys
import time
from contextlib import suppress

import psutil

from agents.se_darwin.fork_server import seccomp_filter
from agents.se_darwin.sandbox import (
    Limits,
    ProgramSources,
    PytestSuite,
    Sandbox,
    TestCase,
    TestSources,
)

HONEST = "def solve(x):\n    return x + 1\n"
TESTS = """
from program import solve

def test_small():
    assert solve(0) == 1
    assert solve(1) == 2

def test_large():
    assert solve(2) == 3
"""
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h: orphaned descendants become children of this process
LIMITS = Limits(cpu_seconds=0.1, wall_seconds=1.0)


def forbid_namespaces() -> None:
    """Forbid `unshare` to this process and its children, as a container's seccomp profile does."""
    abi, clone, prlimit, _ = seccomp_filter._MACHINES[os.uname().machine]
    unshare = range(272, 273) if os.uname().machine == "x86_64" else range(97, 98)
    seccomp_filter._MACHINES = {os.uname().machine: (abi, clone, prlimit, (unshare,))}
    seccomp_filter._EVERYWHERE = ()
    if (state := seccomp_filter.install_seccomp_filter()) != "on":
        raise OSError(state)


def main() -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot become a child subreaper")
    if "--no-namespaces" in sys.argv:
        forbid_namespaces()
    programs = json.load(sys.stdin)
    report = {}
    modules, files = ["builtins", "json", "shutil", "subprocess"], "--files" in sys.argv
    with Sandbox(modules=modules, parallel=4, files=files) as sandbox:
        cases = [TestCase.returning((number,), number + 1) for number in range(3)]
        sources = TestSources(TESTS)
        suite = PytestSuite.prepare(sources, ProgramSources(HONEST, "program"), "solve")
        suite = sandbox.collect(suite, function="solve", limits=LIMITS)
        for name, source in programs.items():
            started = time.monotonic()
            passed = [
                [case.passes(output) for case, output in zip(tests, run.outputs, strict=True)]
                for tests, run_on in ((cases, cases), (suite.cases(), suite))
                for run in sandbox.run([source, HONEST], run_on, function="solve", limits=LIMITS)
            ]
            report[name] = {
                "passed": any(passed[0] + passed[2]),
                "neighbour": all(passed[1] + passed[3]),
                "seconds": time.monotonic() - started,
            }
        report["restarts"] = sandbox.restarts
        report["layers"] = sandbox.layers
    report["left"] = left_behind()
    json.dump(report, sys.stdout)


def left_behind() -> list[str]:
    """Command lines of living descendants; one that was killed is given seconds to end."""
    lines = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                lines[process] = " ".join(process.cmdline()) or str(process)
    return [lines[process] for process in psutil.wait_procs([*lines], timeout=10)[1]]


if __name__ == "__main__":
    main()
