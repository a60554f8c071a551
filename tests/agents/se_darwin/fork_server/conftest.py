from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import Sandbox
from tests.agents.se_darwin.suites import open_pytest_sandbox

REPOSITORY = Path(__file__).parents[4]


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A sandbox for suites that import pytest."""
    with open_pytest_sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def run_confined() -> Callable[[str, str], str]:
    """Evaluate an expression in a process that has only one layer of confinement."""

    def run_confined(layer: str, action: str) -> str:
        module, _, name = layer.partition(".")
        script = (
            f"import ctypes, os, subprocess\n"
            f"from agents.se_darwin.fork_server.{module} import {name}\n"
            f"libc = ctypes.CDLL(None, use_errno=True)\n"
            f"print({name}())\n"
            f"try:\n    print({action})\n"
            f"except OSError as error:\n    print(type(error).__name__)\n"
        )
        run = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
        state, outcome = run.stdout.splitlines()
        if state.startswith("refused"):
            pytest.skip(f"this host: {state}")
        return outcome

    return run_confined
