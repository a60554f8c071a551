"""Runs Genesis' own tests of this feature on our library: ``make genesis-tests CHECKOUT=...``.

The checkout is only read. Each outcome is compared with ``docs/reference/genesis-tests.md``: a test
that neither it nor its file has a row for must pass.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import agents
import infrastructure
from genesis_fp16.compatible import install

TABLE = Path(__file__).parents[2] / "docs/reference/genesis-tests.md"
FILES = (
    "tests/training/test_fp16_trainer.py",
    "tests/training/test_fp16_cuda.py",
    "tests/training/test_world_model_fp16_integration.py",
    "tests/training/test_se_darwin_fp16_integration.py",
    "tests/e2e/test_business_creation_fp16_benchmark.py",
)
TESTS = 31
_ROW = re.compile(r"\| `(?P<test>[\w./:]+)` \| (?P<outcomes>[a-z ]+) \|")


class Outcomes:
    """Collects the outcome of each test, and the error of those that failed."""

    def __init__(self) -> None:
        self.by_test: dict[str, str] = {}
        self.errors: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of the call, or of the set-up if that failed or skipped."""
        if report.when != "call" and report.passed:
            return
        name = report.nodeid
        self.by_test[name] = report.outcome
        if report.failed and report.longrepr is not None:
            lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
            self.errors[name] = lines[0][1:].strip() if lines else ""


def documented(text: str) -> dict[str, list[str]]:
    """The outcomes that the table of the page allows each test, or each of a file."""
    return {row["test"]: row["outcomes"].split(" or ") for row in _ROW.finditer(text)}


def prepare(checkout: Path) -> None:
    """Let this process import our trainer and world model, and Genesis' own code behind them."""
    install()
    for package in (infrastructure, agents):
        package.__path__.append(str(checkout / package.__name__))
    logging_config = ModuleType("infrastructure.logging_config")  # it writes elsewhere
    logging_config.get_logger = infrastructure.get_logger = logging.getLogger
    sys.modules[logging_config.__name__] = logging_config


def main() -> int:
    """Return 0 if each outcome is a documented one."""
    checkout = Path(*sys.argv[1:2]).expanduser().resolve()
    missing = [file for file in FILES if not (checkout / file).is_file()]
    if missing:
        problem = f"{checkout} is not a checkout of Genesis: {missing[0]} is missing"
        print(f"{problem}; name one by make genesis-tests CHECKOUT=~/genesis", file=sys.stderr)
        return os.EX_USAGE
    sys.dont_write_bytecode = True
    prepare(checkout)
    outcomes = Outcomes()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        arguments = ["-c", str(checkout / "pytest.ini"), "--rootdir", str(checkout), "-q"]
        arguments += ["-o", "addopts=", "-o", f"log_file={folder}/log", "-p", "no:cacheprovider"]
        arguments += ["--disable-warnings", *sys.argv[2:]]
        pytest.main([*arguments, *(str(checkout / file) for file in FILES)], plugins=[outcomes])
        os.chdir("/")
    return report(outcomes, documented(TABLE.read_text()))


def report(outcomes: Outcomes, expected: dict[str, list[str]]) -> int:
    """Print each outcome; return 0 if all tests ran, and each outcome is an *expected* one."""
    different = abs(TESTS - len(outcomes.by_test))
    for test in sorted({*outcomes.by_test, *(name for name in expected if "::" in name)}):
        got = outcomes.by_test.get(test, "not run")
        allowed = expected.get(test) or expected.get(test.partition("::")[0], ["passed"])
        different += got not in allowed
        wanted = "" if got in allowed else f" ({TABLE.name}: {' or '.join(allowed)})"
        print(f"{got:8}{wanted} {test} {outcomes.errors.get(test, '')}".rstrip())
    counts = Counter(outcomes.by_test.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items())))
    print(f"{len(outcomes.by_test)} of {TESTS} tests ran")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
