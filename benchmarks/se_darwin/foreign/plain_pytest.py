"""A test module run by pytest, not in the agent's sandbox: only to choose bugs.

The process has no network and limited memory, but can write files: only for projects whose tests
one would run anyway.
"""

from __future__ import annotations

import ast
import ctypes
import multiprocessing
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

import pytest

from benchmarks.se_darwin.foreign.bug import MODULE

_CPU_SECONDS, _WALL_SECONDS = 10, 120.0
_BYTES = 2 << 30
_NEW_NETWORK, _NEW_USER = 0x40000000, 0x10000000  # CLONE_NEWNET, CLONE_NEWUSER


def passed_in_pytest(code: str, test_code: str) -> set[int]:
    """Return the numbers of the tests ``...__number`` that the program passes."""
    results: dict[int, bool] = {}
    for name, passed in _run(code, [test_code]):
        number = name.partition("[")[0].rpartition("__")[2]
        if number.isdigit():
            results[int(number)] = results.get(int(number), True) and passed
    return {number for number, passed in results.items() if passed}


def all_pass_in_pytest(code: str, *test_codes: str) -> bool:
    """Whether there are tests, and the program passes all of them."""
    results = _run(code, test_codes)
    return bool(results) and all(passed for _, passed in results)


def _run(code: str, test_codes: Sequence[str]) -> list[tuple[str, bool]]:
    """Run the tests in a fork of this process; return the results, as far as it got."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="foreign-") as folder:
        Path(folder, f"{MODULE}.py").write_text(code)
        for number, test_code in enumerate(test_codes):
            Path(folder, f"test_{number}.py").write_text(test_code)
        run = _call_tests if all(map(_is_plain, test_codes)) else _run_pytest
        child = context.Process(target=_child, args=(folder, run))
        child.start()
        child.join(_WALL_SECONDS)
        child.kill()
        child.join()
        results = Path(folder, "results")
        lines = results.read_text().splitlines() if results.exists() else ["-"]
    if child.exitcode != 0:
        lines.append("- the process did not end well")
    return [(line[2:], line.startswith("+")) for line in lines]


def _is_plain(test_code: str) -> bool:
    """Whether all tests are functions without arguments and decorators, which need no pytest."""
    for node in ast.parse(test_code).body:
        if isinstance(node, ast.ClassDef):
            return False
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            if node.decorator_list or node.args.args:
                return False
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            return False
    return True


class _Results:
    """Writes the result of each test to a file."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called by pytest after each phase of a test."""
        if report.when == "call" or report.failed:
            self._file.write(f"{'+' if report.passed else '-'} {report.nodeid}\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Called by pytest after each module."""
        if report.failed:
            self._file.write(f"- {report.nodeid}\n")


def _child(folder: str, run: Callable[[Path, TextIO], None]) -> None:
    os.chdir(folder)
    unshare = ctypes.CDLL(None, use_errno=True).unshare
    if unshare(_NEW_NETWORK) != 0 and unshare(_NEW_NETWORK | _NEW_USER) != 0:
        raise OSError(ctypes.get_errno(), "this host does not allow a network namespace")
    resource.setrlimit(resource.RLIMIT_AS, (_BYTES, _BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    sys.path.insert(0, folder)
    with Path(folder, "results").open("a", buffering=1) as results:
        run(Path(folder), results)
    os._exit(0)


def _run_pytest(folder: Path, results: TextIO) -> None:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "-p", "no:timeout"]
    files = sorted(map(str, folder.glob("test_*.py")))
    pytest.main(
        [*options, "--rootdir", str(folder), "-c", "/dev/null", *files],
        plugins=[_Results(results)],
    )


def _call_tests(folder: Path, results: TextIO) -> None:
    for file in sorted(folder.glob("test_*.py")):
        namespace: dict[str, object] = {"__name__": file.stem}
        exec(compile(file.read_text(), file.name, "exec"), namespace)  # noqa: S102
        for name, test in list(namespace.items()):
            if name.startswith("test") and callable(test):
                try:
                    test()
                    passed = True
                except (Exception, SystemExit, pytest.fail.Exception):  # by the program
                    passed = False
                results.write(f"{'+' if passed else '-'} {name}\n")
