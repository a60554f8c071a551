"""How a storm is judged, and the daemon that it watches."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.many_agents.storm import (
    ASKED,
    LIMIT_SECONDS,
    Flip,
    _attempts,
    count_out_of_order,
    judge,
)
from benchmarks.many_agents.storm_agents import STEADY
from benchmarks.many_agents.storm_daemon import StormDaemon
from genesis_fp16.domain.run import Run, RunState
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import PrecisionChanged, StepStats
from tests.patience import crowding


def changed(at: float, effective: str) -> Event:
    reason = "flag" if effective == "fp32" else "default"
    state = PrecisionState(requested="fp16", effective=effective, reason=reason)
    return PrecisionChanged(time=at, step=1, state=state, loss_scale=1.0)


def steps(at: float, seconds: float, fp16: int) -> Event:
    precision = "fp16" if fp16 else "fp32"
    return StepStats(
        time=at, step=1, seconds=seconds, fp16=fp16, loss_scale=1.0, precision=precision
    )


FLIPS = [Flip(at=100.0, to="fp32"), Flip(at=110.0, to="fp16")]


def test_who_trained_before_the_change_is_timed() -> None:
    there = [changed(90.0, "fp16"), changed(100.7, "fp32"), changed(110.4, "fp16")]
    begun_since = [changed(101.9, "fp32"), steps(103.0, 1.0, 0)]
    ended = [changed(90.0, "fp16"), steps(99.0, 1.0, 20)]
    found = judge(FLIPS, [there, begun_since, ended])
    assert [round(each, 3) for each in found.seconds] == [0.7, 0.4]
    assert (found.flips, found.late_windows) == (2, 0)


@pytest.mark.parametrize(
    ("at", "seconds", "late"),
    [
        (102.5, 1.0, 0),  # began before the limit was over
        (103.5, 1.0, 1),
        (110.5, 0.1, 0),  # the flag allowed it again
        (99.0, 1.0, 0),
    ],
)
def test_a_window_of_fp16_that_begins_too_late_is_counted(
    at: float, seconds: float, late: int
) -> None:
    found = judge(FLIPS, [[changed(90.0, "fp16"), steps(at, seconds, 20)]])
    assert found.late_windows == late


def run(due: float, started: float | None, name: str) -> Run:
    return Run(
        id=name,
        agent=name,
        number=1,
        trigger="schedule",
        state=RunState.SUCCEEDED,
        seed=0,
        due_at=due,
        created_at=due,
        available_at=due,
        started_at=started,
    )


def test_what_starts_before_a_run_that_waits_longer_is_counted() -> None:
    runs = [run(1.0, 10.0, "a"), run(2.0, 12.0, "b"), run(3.0, 11.0, "c"), run(4.0, None, "d")]
    assert count_out_of_order(runs) == 1
    assert count_out_of_order(runs[:2]) == 0


@pytest.fixture
def folder() -> Iterator[Path]:
    # A socket's path must be short. What is still ending may write to it.
    with tempfile.TemporaryDirectory(prefix="storm-", ignore_cleanup_errors=True) as name:
        yield Path(name)


@pytest.mark.process
def test_a_daemon_with_its_agents_is_seen_from_outside(folder: Path) -> None:
    settings = {
        "ENABLE_FP16_TRAINING": "true",
        "GENESIS_HOME": folder / "home",
        "GENESIS_CPU_HALF": "true",
        "GENESIS_DEVICE": "cpu",
        "GENESIS_LOG_FORMAT": "json",
        "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
    }
    daemon = StormDaemon(folder=folder, names=[STEADY, "agent-0000"], settings=settings)
    daemon.install()
    daemon.configure()

    def last(effective: str) -> bool:
        events = [each for attempt in _attempts(daemon.home) for each in attempt]
        states = [each.state for each in events if isinstance(each, PrecisionChanged)]
        return bool(states) and states[-1].effective == effective

    with daemon.serving(forked=True):
        daemon.wait_for_agents(2)
        daemon.wait_for(lambda: last("fp16"), "to train the steady agent")
        scrape = daemon.scrape()
        assert scrape.bytes > 1000
        assert 0.0 <= scrape.tick_age_seconds < 5.0 * crowding()
        assert all(daemon.ask(path) > 0 for path in ASKED)
        with pytest.raises(RuntimeError, match=r"/api/nowhere .*404"):
            daemon.ask("/api/nowhere")
        assert daemon.api_bytes() > 2**20
        flip = Flip(at=daemon.configure(ENABLE_FP16_TRAINING="false"), to="fp32")
        daemon.wait_for(lambda: last("fp32"), "to follow the flag")
        found = judge([flip], _attempts(daemon.home))
    assert len(found.seconds) == 1, "the steady agent alone trains"
    assert found.seconds[0] < LIMIT_SECONDS * crowding()
