"""A short part of the torture; `make torture` plays hundreds of rounds of every kind."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROUNDS = 10


def test_rounds_of_several_kinds_without_a_violation(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Another seed than by hand, always the same: what fails here can be repeated."""
    command = [sys.executable, "-m", "tests.e2e.torture", "--quick"]
    done = subprocess.run(
        [*command, "--seed", "11", "--rounds", str(ROUNDS), "--keep", str(tmp_path)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    summary = done.stdout.splitlines()[-1]
    record_property("measured", summary)
    assert summary.endswith(": 0 violations")
