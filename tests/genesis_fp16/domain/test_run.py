"""The state machine: which states follow, and what each ending means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.domain.run import (
    ACTIVE,
    MAX_BACKOFF_SECONDS,
    TERMINAL,
    TRANSITIONS,
    Ending,
    RetryPolicy,
    RunState,
    StopCause,
    resolve_ending,
)

POLICY = RetryPolicy(max_attempts=3, backoff_seconds=5.0)

endings = st.builds(
    Ending,
    exit_code=st.none() | st.integers(0, 255),
    signal=st.none() | st.integers(1, 31),
    cause=st.none() | st.sampled_from(StopCause),
)
policies = st.builds(
    RetryPolicy, max_attempts=st.integers(1, 10), backoff_seconds=st.floats(0.1, 100.0)
)


def test_terminal_states_absorb() -> None:
    assert all(TRANSITIONS[state] == frozenset() for state in TERMINAL)
    assert len(TERMINAL) == 6
    assert {RunState.STARTING, RunState.RUNNING, RunState.STOPPING} == ACTIVE


def test_every_state_can_be_reached_and_left() -> None:
    reached = {RunState.QUEUED}
    while (more := reached | {t for s in reached for t in TRANSITIONS[s]}) != reached:
        reached = more
    assert reached == set(RunState)
    assert all(TRANSITIONS[state] & TERMINAL for state in set(RunState) - TERMINAL)


@pytest.mark.parametrize(
    ("ending", "failures", "state", "delay", "failed"),
    [
        (Ending(exit_code=0), 2, "succeeded", 0, False),
        (Ending(exit_code=0, cause=StopCause.CANCEL), 0, "succeeded", 0, False),
        (Ending(exit_code=66), 2, "no_data", 0, False),
        (Ending(exit_code=66, cause=StopCause.SHUTDOWN), 0, "no_data", 0, False),
        (Ending(exit_code=78), 0, "failed", 0, True),
        (Ending(exit_code=78, cause=StopCause.SHUTDOWN), 0, "failed", 0, True),
        (Ending(exit_code=75), 2, "queued", 5, False),
        (Ending(exit_code=75, cause=StopCause.SHUTDOWN), 2, "queued", 0, False),
        (Ending(signal=9, cause=StopCause.SHUTDOWN), 2, "queued", 0, False),
        (Ending(exit_code=75, cause=StopCause.CANCEL), 0, "cancelled", 0, False),
        (Ending(signal=9, cause=StopCause.RUN_TIMEOUT), 0, "timed_out", 0, True),
        (Ending(exit_code=1), 0, "queued", 5, True),
        (Ending(exit_code=1), 1, "queued", 10, True),
        (Ending(exit_code=1), 2, "failed", 0, True),
        (Ending(signal=11), 2, "crashed", 0, True),
        (Ending(signal=9, cause=StopCause.NO_PROGRESS), 0, "queued", 5, True),
        (Ending(exit_code=75, cause=StopCause.NO_PROGRESS), 2, "timed_out", 0, True),
        (Ending(exit_code=75, disk_full=True), 2, "queued", 5, False),
        (Ending(exit_code=75, disk_full=True, cause=StopCause.NO_PROGRESS), 2, "queued", 5, False),
        (
            Ending(exit_code=75, disk_full=True, cause=StopCause.RUN_TIMEOUT),
            0,
            "timed_out",
            0,
            True,
        ),
        (Ending(exit_code=75, disk_full=True, cause=StopCause.CANCEL), 0, "cancelled", 0, False),
        (Ending(signal=9, cause=StopCause.START_TIMEOUT), 2, "timed_out", 0, True),
        (Ending(cause=StopCause.ORPHANED), 2, "queued", 0, False),
        (Ending(exit_code=0, cause=StopCause.ORPHANED), 2, "succeeded", 0, False),
        (Ending(), 2, "failed", 0, True),
    ],
)
def test_what_follows_each_ending(
    ending: Ending, failures: int, state: str, delay: float, failed: bool
) -> None:
    verdict = resolve_ending(ending, failures=failures, policy=POLICY)
    assert (verdict.state, verdict.delay_seconds, verdict.failed) == (state, delay, failed)


def test_a_full_disk_is_tried_again_ever_more_rarely_but_for_ever() -> None:
    full = Ending(exit_code=75, disk_full=True)
    verdicts = [
        resolve_ending(full, failures=2, policy=POLICY, attempts=attempts)
        for attempts in (1, 2, 3, 6, 7, 1000)
    ]
    assert [verdict.delay_seconds for verdict in verdicts] == [5, 10, 20, 160, 300, 300]
    assert {(verdict.state, verdict.failed) for verdict in verdicts} == {("queued", False)}


@given(endings, st.integers(0, 1000), policies)
def test_transitions_can_follow_active_states(
    ending: Ending, failures: int, policy: RetryPolicy
) -> None:
    verdict = resolve_ending(ending, failures=failures, policy=policy)
    assert all(verdict.state in TRANSITIONS[state] for state in ACTIVE)
    assert 0 <= verdict.delay_seconds <= MAX_BACKOFF_SECONDS
    assert verdict.delay_seconds == 0 or verdict.state is RunState.QUEUED


@given(st.lists(endings, min_size=1, max_size=50), policies)
def test_failures_end_a_run_after_as_many_attempts_as_allowed(
    lives: list[Ending], policy: RetryPolicy
) -> None:
    failures = 0
    for ending in lives:
        verdict = resolve_ending(ending, failures=failures, policy=policy)
        failures += verdict.failed
        if verdict.state in TERMINAL:
            break
    assert failures <= policy.max_attempts
    assert (failures < policy.max_attempts) or verdict.state in TERMINAL


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (Ending(exit_code=3), "exit code 3"),
        (Ending(signal=9), "killed by signal 9"),
        (Ending(signal=9, cause=StopCause.NO_PROGRESS), "stopped: no_progress"),
        (Ending(), "vanished"),
    ],
)
def test_endings_as_text(ending: Ending, words: str) -> None:
    assert str(ending) == words
