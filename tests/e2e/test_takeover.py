"""Two daemons on machines of their own, one PostgreSQL: the second takes over in time."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.takeover import machine
from benchmarks.takeover.postgres import ProgramMissingError, postgres_server
from benchmarks.takeover.trial import Takeover, site
from benchmarks.takeover.waiting import wait_for
from tests.patience import crowding

ROOT = Path(__file__).resolve().parents[2]
WITHIN_SECONDS = 10.0
# The daemon and what it starts import torch once for all of them.
PROGRAM = f"""#!{sys.executable}
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.preloaded import run_program
run_program()
"""


def test_a_standby_takes_over_from_one_that_is_suspended_and_from_one_that_is_cut_off(
    tmp_path: Path, record_property, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run is lost, and none trains on both machines at a time."""
    pytest.importorskip("psycopg")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("machines of their own need root and unshare: apt-get install util-linux")
    program = tmp_path / "genesis-fp16"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    monkeypatch.setattr(machine, "PROGRAM", program)
    try:
        with postgres_server() as port, site(tmp_path, port) as machines:
            first, relay = machines.machine()
            wait_for(first.leads, "the first daemon to lead")
            second, second_relay = machines.machine()
            wait_for(second.waits, "the second daemon to wait")
            assert "genesis_leader 0.0" in second.get("/metrics")[1]
            assert second.get("/healthz")[0] == 200
            suspended = machines.take_over(first, relay, second, "suspended")
            first.resume_daemon()
            wait_for(lambda: first.daemon() is None, "the daemon that was suspended to end")
            assert "not answer" not in first.log, "its database is not to blame"
            third, _ = machines.machine()
            wait_for(third.waits, "the third daemon to wait")
            cut = machines.take_over(second, second_relay, third, "cut")
            wait_for(lambda: second.daemon() is None, "the daemon that was cut off to end")
            assert "lock on the database" in second.log
    except ProgramMissingError as error:
        pytest.skip(str(error))
    for takeover in (suspended, cut):
        _check(takeover)
        record_property(
            "measured",
            f"{takeover.loss}: leads {takeover.leads:.1f} s later, next step "
            f"{takeover.next_step:.1f} s, last one {takeover.last_step:.1f} s",
        )


def _check(takeover: Takeover) -> None:
    assert takeover.leads < WITHIN_SECONDS * crowding()
    assert takeover.last_step < takeover.leads < takeover.next_step
    assert takeover.attempts == 2
