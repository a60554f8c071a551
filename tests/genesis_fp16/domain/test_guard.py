"""Which decision follows another, that the guard never flaps, and which runs are canaries."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from genesis_fp16.domain.guard import (
    Decision,
    Detection,
    GuardSettings,
    GuardState,
    Trigger,
    clear_trip,
    end_probation,
    is_canary,
    start_probation,
    trip,
)
from infrastructure.events import Role

AUTO = GuardSettings(guard_reenable="auto")
MANUAL = GuardSettings()
HOUR, DAY = 3600.0, 86400.0
FOUND = Detection(trigger=Trigger.OVERFLOW_STORM, summary="so many", numbers={})
ROLLOUT = Detection(
    trigger=Trigger.MISMATCH, summary="so much", numbers={}, roles={Role.ROLLOUT: "fp32"}
)
CLEAN = Decision(agent="a")
TRIPPED = Decision(
    agent="a",
    state=GuardState.TRIPPED,
    at=1000.0,
    trigger=Trigger.OVERFLOW_STORM,
    level=1,
    until=1000.0 + HOUR,
    run_id="r1",
    evidence="guard/a/trip.json",
)
PROBATION = replace(
    TRIPPED, state=GuardState.PROBATION, at=9000.0, until=None, run_id="r2", actor="ann"
)
WATCHING = replace(PROBATION, state=GuardState.WATCHING, at=10_000.0)


def tripped(last: Decision, now: float) -> Decision | None:
    return trip(last, FOUND, AUTO, now=now, run_id="r9", step=7)


def test_a_trip_records_reason_run_and_cooldown() -> None:
    expected = replace(TRIPPED, run_id="r9", step=7, reason="so many", evidence="")
    assert tripped(CLEAN, 1000.0) == expected


@pytest.mark.parametrize(
    ("last", "now", "hours"),
    [
        (PROBATION, 9500.0, 2),  # a relapse
        (replace(PROBATION, level=4), 9500.0, 16),
        (PROBATION, 9000.0 + DAY, 2),  # however long it lasts, it is on trial
        (replace(PROBATION, level=4000), 9500.0, 24),  # the limit
        (WATCHING, 10_000.0 + HOUR, 2),  # not trusted yet
        (WATCHING, 10_000.0 + DAY, 1),  # a clean slate
    ],
)
def test_each_relapse_doubles_the_cool_down(last: Decision, now: float, hours: int) -> None:
    decision = tripped(last, now)
    assert decision is not None
    assert decision.until == now + hours * HOUR


def test_a_tripped_guard_does_not_trip_again() -> None:
    assert tripped(TRIPPED, 1001.0) is None


def test_a_trip_of_single_roles_leaves_the_others() -> None:
    changed = trip(CLEAN, ROLLOUT, AUTO, now=5.0, run_id="r", step=1)
    assert changed is not None
    assert (changed.state, changed.roles) == ("tripped", {"rollout": "fp32"})
    assert not changed.demands_fp32
    cleared = clear_trip(changed, now=9.0, actor="ann", reason="new driver")
    assert cleared is not None
    assert cleared.roles == {}, "what was in force before is back"


@pytest.mark.parametrize("detection", [FOUND, ROLLOUT])
def test_a_second_detection_after_a_change_of_roles_demands_fp32(detection: Detection) -> None:
    changed = trip(CLEAN, ROLLOUT, AUTO, now=5.0, run_id="r", step=1)
    assert changed is not None
    again = trip(changed, detection, AUTO, now=6.0, run_id="r", step=2)
    assert again is not None
    assert again.demands_fp32
    assert (again.level, again.trigger) == (2, detection.trigger)
    assert trip(again, detection, AUTO, now=7.0, run_id="r", step=3) is None


def test_a_guard_that_is_switched_off_does_not_trip() -> None:
    off = GuardSettings(guard_enabled=False)
    assert trip(CLEAN, FOUND, off, now=1.0, run_id="r", step=1) is None


def test_after_the_cool_down_a_new_run_tries_again() -> None:
    over = 1000.0 + HOUR
    decision = start_probation(TRIPPED, AUTO, now=over, run_id="r2")
    assert decision is not None
    assert (decision.state, decision.level, decision.run_id) == ("probation", 1, "r2")
    assert decision.evidence == "", "what it rests on is not written yet"
    assert start_probation(TRIPPED, AUTO, now=over - 1, run_id="r2") is None
    assert start_probation(TRIPPED, AUTO, now=over, run_id="r1") is None, "the run that tripped"
    assert start_probation(TRIPPED, MANUAL, now=over, run_id="r2") is None
    assert start_probation(WATCHING, AUTO, now=over, run_id="r2") is None


def test_an_operator_may_clear_a_trip_at_once() -> None:
    decision = clear_trip(TRIPPED, now=1001.0, actor="ann", reason="driver mended")
    assert decision is not None
    assert (decision.state, decision.actor, decision.reason) == (
        "probation",
        "ann",
        "driver mended",
    )
    assert decision.level == 1, "a relapse still counts"
    assert decision.evidence == ""
    assert clear_trip(PROBATION, now=1.0, actor="ann", reason="") is None
    assert clear_trip(CLEAN, now=1.0, actor="ann", reason="") is None


def test_a_probation_ends_with_a_run_of_enough_half_steps() -> None:
    decision = end_probation(PROBATION, AUTO, now=9900.0, run_id="r2", half_steps=100)
    assert decision is not None
    assert (decision.state, decision.actor, decision.level) == ("watching", "guard", 1)
    assert decision.evidence == ""
    assert end_probation(PROBATION, AUTO, now=9900.0, run_id="r2", half_steps=99) is None
    assert end_probation(TRIPPED, AUTO, now=9900.0, run_id="r2", half_steps=100) is None


STEPS = st.tuples(
    st.sampled_from(["found", "mismatch", "begin", "succeed", "clear", "wait"]),
    st.floats(0.0, 2 * HOUR),
    st.integers(0, 300),
)


def decisions_of(steps, rules: GuardSettings, *, operator: bool) -> list[Decision]:
    """All decisions that a history of events leads to."""
    now, number, last, history = 0.0, 0, CLEAN, []
    for name, seconds, half_steps in steps:
        now += seconds
        number += name == "begin"
        run_id = f"r{number}"
        decided = None
        if name in {"found", "mismatch"}:
            detection = FOUND if name == "found" else ROLLOUT
            decided = trip(last, detection, rules, now=now, run_id=run_id, step=1)
        elif name == "begin":
            decided = start_probation(last, rules, now=now, run_id=run_id)
        elif name == "succeed":
            decided = end_probation(last, rules, now=now, run_id=run_id, half_steps=half_steps)
        elif name == "clear" and operator:
            decided = clear_trip(last, now=now, actor="ann", reason="again")
        if decided is not None:
            history.append(decided)
            last = decided
    return history


@hypothesis_settings(max_examples=3 * hypothesis_settings.default.max_examples)
@given(st.lists(STEPS, max_size=200))
def test_it_never_flaps(steps) -> None:
    """Between any two trips lies a cool-down, unless the first changed single roles only."""
    history = decisions_of(steps, AUTO, operator=False)
    elapsed = sum(seconds for _, seconds, _ in steps)
    trips = [decision for decision in history if decision.state is GuardState.TRIPPED]
    for whole in (True, False):
        assert sum(decision.demands_fp32 is whole for decision in trips) <= 1 + elapsed / HOUR
    assert len(history) <= 3 * len(trips)
    for before, after in pairwise(trips):
        assert before.until is not None
        assert after.at >= before.until or (before.roles and not after.roles)
        if after.at - before.at < DAY:
            assert after.level == before.level + 1
    for before, after in pairwise(history):
        assert (before.state, after.state) in {
            ("tripped", "probation"),
            ("probation", "tripped"),
            ("probation", "watching"),
            ("watching", "tripped"),
        } or (before.roles and after.demands_fp32)


@given(st.lists(STEPS, max_size=100))
def test_without_an_operator_a_manual_guard_stays_tripped(steps) -> None:
    history = decisions_of(steps, MANUAL, operator=False)
    assert len(history) <= (2 if history and history[0].roles else 1)


@given(st.lists(STEPS, max_size=100))
def test_each_clearing_allows_at_most_one_trip(steps) -> None:
    words = sum(name == "clear" for name, _, _ in steps)
    trips = [d for d in decisions_of(steps, MANUAL, operator=True) if d.state is GuardState.TRIPPED]
    for whole in (True, False):
        assert sum(decision.demands_fp32 is whole for decision in trips) <= 1 + words


def canaries(share: float, runs: int = 20) -> list[int]:
    settings = GuardSettings(canary_share=share)
    return [number for number in range(1, runs + 1) if is_canary("a", number, settings)]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, []), (0.1, [1, 11]), (0.25, [1, 5, 9, 13, 17]), (1.0, list(range(1, 21)))],
)
def test_the_first_run_of_a_share_is_a_canary(share: float, expected: list[int]) -> None:
    assert canaries(share) == expected


@given(st.integers(0, 1000), st.integers(1, 500))
def test_the_share_is_kept_to_within_one_run(per_mille: int, runs: int) -> None:
    count = len(canaries(per_mille / 1000, runs))
    assert count == -(-runs * per_mille // 1000)


def test_only_agents_that_are_listed() -> None:
    settings = GuardSettings(canary_agents="se-darwin, b")
    assert [is_canary(name, 1, settings) for name in ("se-darwin", "b", "c")] == [1, 1, 0]
