"""A short part of the torture; `make torture` plays hundreds of rounds of every kind."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

ROUNDS = 10

# Without kinds: any that take few seconds.
STAGES = {
    ("local", "sqlite"): (),
    ("local", "postgres"): (
        "connections to PostgreSQL cut",
        "connection with the daemon's lock cut",
        "PostgreSQL restarted",
        "store locked by another process",
    ),
    ("kubernetes", "sqlite"): (
        "engine out of reach",
        "engine full",
        "engine forgets a job that goes on",
        "job started twice",
    ),
}


@pytest.mark.parametrize(("executor", "database"), STAGES)
def test_rounds_of_several_kinds_without_a_violation(
    executor: str, database: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Another seed than by hand, always the same: what fails here can be repeated."""
    if database == "postgres":
        pytest.importorskip("psycopg")
        if shutil.which("initdb") is None:
            pytest.skip("PostgreSQL is not installed")
    if executor == "kubernetes" and shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    kinds = STAGES[executor, database]
    command = [sys.executable, "-m", "tests.e2e.torture", "--quick", "--seed", "11"]
    command += ["--rounds", str(len(kinds) or ROUNDS), *(f"--kind={kind}" for kind in kinds)]
    done = subprocess.run(
        [*command, "--executor", executor, "--database", database, "--keep", str(tmp_path)],
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
