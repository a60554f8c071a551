"""Fallbacks of workers: adopted from their events, remembered until the run ends."""

from pathlib import Path

import pytest

from genesis_fp16.domain.run import Run
from genesis_fp16.guard import Fallbacks
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import Notice, PrecisionChanged

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_OPERATOR = PrecisionState(requested="fp16", effective="fp16", reason="operator")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FALLBACK = PrecisionState(requested="fp16", effective="fp32", reason="floor_policy")


def changed(state: PrecisionState, time: float) -> PrecisionChanged:
    return PrecisionChanged(step=1, state=state, loss_scale=1.0, time=time)


@pytest.fixture
def run(store: Store) -> Run:
    run = store.enqueue("a", first_seed=0)
    assert store.begin_attempt(run.id, run.id) is not None
    return run


@pytest.fixture
def fallbacks(store: Store, home_settings: Settings) -> Fallbacks:
    return Fallbacks(store, home_settings.home)


def test_a_fallback_is_adopted_until_the_run_ends(fallbacks: Fallbacks) -> None:
    fallbacks.on_event("a", "r", changed(FP16, 1.0))
    assert fallbacks.fell_back_at("r") is None
    fallbacks.on_event("a", "r", changed(FALLBACK, 2.0))
    fallbacks.on_event("a", "r", changed(BY_FLAG, 3.0))
    fallbacks.on_run_state("a", "r", "queued")
    assert fallbacks.fell_back_at("r") == 2.0
    assert fallbacks.fell_back_at("another run of a") is None
    fallbacks.on_run_state("a", "r", "succeeded")
    assert fallbacks.fell_back_at("r") is None


def test_only_a_fallback_from_half_precision_is_a_new_one(fallbacks: Fallbacks) -> None:
    """The same acknowledgement answers the daemon, and begins a resumed attempt."""
    fallbacks.on_event("a", "r", changed(FALLBACK, 2.0))
    fallbacks.on_event("a", "r", changed(FALLBACK, 3.0))
    assert fallbacks.fell_back_at("r") == 2.0
    fallbacks.on_event("a", "r", changed(BY_OPERATOR, 4.0))
    fallbacks.on_event("a", "r", changed(FALLBACK, 5.0))
    assert fallbacks.fell_back_at("r") == 5.0


@pytest.mark.parametrize(("reason", "expected"), [("floor_policy", 2.0), ("flag", None)])
def test_a_fallback_that_needs_a_restart_is_adopted(fallbacks, reason, expected) -> None:
    """A sharded model cannot leave FP16 in place: its next attempt begins in FP32."""
    fields = {"error": "pinned", "reason": reason}
    event = Notice(level="warning", event="precision_needs_restart", fields=fields, time=2.0)
    fallbacks.on_event("a", "r", event)
    assert fallbacks.fell_back_at("r") == expected


def test_a_restarted_daemon_reads_the_events_of_unfinished_runs(
    run: Run, store: Store, home_settings: Settings
) -> None:
    path = home_settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.parent.mkdir(parents=True)
    times = iter((1.0, 2.0, 3.0))
    with EventWriter(path, lambda: next(times)) as write:
        for state in (FP16, FALLBACK, BY_FLAG):
            write(changed(state, 0.0))
    store.update_attempt(run.id, events_offset=path.stat().st_size)
    assert Fallbacks(store, home_settings.home).fell_back_at(run.id) == 2.0


def test_an_unreadable_event_file_is_ignored(
    run: Run, store: Store, home_settings: Settings
) -> None:
    path: Path = home_settings.home / "runs" / run.id / "attempts" / "1" / "events.ndjson"
    path.mkdir(parents=True)
    assert Fallbacks(store, home_settings.home).fell_back_at(run.id) is None
