"""A short part of the torture; `make torture` plays hundreds of rounds of every kind."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.torture import __main__ as torture
from tests.e2e.torture.stage import missing
from tests.preloaded import TORTURE

pytestmark = [pytest.mark.e2e, pytest.mark.long]

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
    executor: str,
    database: str,
    tmp_path: Path,
    forked: None,
    record_property: Callable[[str, object], None],
) -> None:
    """Another seed than by hand, always the same: what fails here can be repeated."""
    if lacks := missing(executor, database):
        pytest.skip(lacks)
    kinds = STAGES[executor, database]
    command = [sys.executable, "-P", "-m", TORTURE, "--quick", "--seed", "11"]
    command += ["--rounds", str(len(kinds) or ROUNDS), *(f"--kind={kind}" for kind in kinds)]
    done = subprocess.run(
        [*command, "--executor", executor, "--database", database, "--keep", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    summary = done.stdout.splitlines()[-1]
    record_property("measured", summary)
    assert summary.endswith(": 0 violations")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds must be at least 1"),
        (["--keep", "/proc/nowhere"], "--keep: "),
        (["--database", "postgres"], "local with postgres needs initdb, postgres"),
        (["--executor", "kubernetes"], "kubernetes with sqlite needs openssl"),
        (["--kind", "disk full"], "all of these kinds need a disk of their own"),
    ],
)
def test_what_cannot_be_played_is_refused_at_once(
    options: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("sys.argv", ["torture", "--no-mount", *options])
    with pytest.raises(SystemExit) as refused:
        torture.main()
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
