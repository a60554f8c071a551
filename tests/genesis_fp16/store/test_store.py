"""The store of runs and attempts: transitions, due times, cancellation."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy.exc import IntegrityError

from genesis_fp16.domain.run import (
    ACTIVE,
    TERMINAL,
    TRANSITIONS,
    Ending,
    RunState,
    RunSummary,
    RunTransition,
)
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from tests.genesis_fp16.new_store import new_store

DONE = RunTransition(state=RunState.SUCCEEDED)
AGAIN = RunTransition(state=RunState.QUEUED, delay_seconds=60.0, failed=True)


def test_a_run_from_queue_to_success(store: Store) -> None:
    assert store.last_success("a") == 0
    run = store.enqueue("a", first_seed=5)
    attempt = store.begin_attempt(run.id, "one")
    assert attempt is not None
    store.update_attempt("one", pid=12, pid_started_at=3.5)
    store.update_attempt("one", events_offset=2**40)
    assert store.move(run.id, RunState.RUNNING)
    store.update_summary(
        run.id,
        RunSummary(
            published=True, reason="better", metrics={"mse": 0.5, "odd": None}, steps=9, error=None
        ),
    )
    assert store.end_attempt(
        attempt, Ending(exit_code=0), DONE, finished_at=attempt.started_at + 2.0
    )

    stored = store.run(run.id)
    assert stored is not None
    assert (stored.state, stored.seed, stored.active_seconds) == (RunState.SUCCEEDED, 5, 2.0)
    assert (stored.published, stored.metrics, stored.steps) == (True, {"mse": 0.5, "odd": None}, 9)
    assert stored.finished
    assert store.last_success("a") == stored.finished_at is not None
    assert store.last_success("b") == 0
    [closed] = store.attempts(run.id)
    assert (closed.pid, closed.exit_code, closed.ending) == (12, 0, "exit code 0")
    assert closed.events_offset == 2**40
    assert store.unfinished() == []


def test_another_attempt_waits_and_is_counted(store: Store) -> None:
    run = store.enqueue("a", first_seed=0)
    first = store.begin_attempt(run.id, "one")
    assert first is not None
    store.end_attempt(first, Ending(signal=9), AGAIN, finished_at=first.started_at + 1)
    [waiting] = store.unfinished()
    assert (waiting.state, waiting.failures) == (RunState.QUEUED, 1)
    assert waiting.available_at >= waiting.created_at + 60
    second = store.begin_attempt(run.id, "two")
    assert second is not None
    assert second.number == 2
    assert [attempt.incarnation for attempt in store.attempts(run.id)] == ["one", "two"]


def test_an_agent_has_one_active_run(store: Store) -> None:
    one, two = (store.enqueue("a", first_seed=0) for _ in range(2))
    of_b = store.enqueue("b", first_seed=0)
    assert store.begin_attempt(one.id, "one")
    with pytest.raises(IntegrityError):
        store.begin_attempt(two.id, "two")
    assert store.begin_attempt(of_b.id, "three")
    assert store.attempts(two.id) == [], "the refused attempt leaves nothing"


def test_an_attempt_ends_once(store: Store) -> None:
    run = store.enqueue("a", first_seed=0)
    attempt = store.begin_attempt(run.id, "one")
    assert attempt is not None
    assert store.end_attempt(attempt, Ending(exit_code=0), DONE, finished_at=attempt.started_at)
    late = Ending(signal=9)
    assert not store.end_attempt(attempt, late, AGAIN, finished_at=attempt.started_at)
    assert [closed.ending for closed in store.attempts(run.id)] == ["exit code 0"]
    assert store.begin_attempt(run.id, "two") is None
    stored = store.run(run.id)
    assert stored is not None
    assert stored.state is RunState.SUCCEEDED


def test_due_times_and_their_runs_are_recorded_together(store: Store) -> None:
    assert store.last_due("a") == {}
    runs = store.record_due({DueTime(agent="a", last_due=30.0): [10.0, 20.0]}, first_seed=3)
    assert [(run.due_at, run.seed, run.trigger) for run in runs] == [
        (10.0, 3, "schedule"),
        (20.0, 4, "schedule"),
    ]
    assert store.record_due({DueTime(agent="a", last_due=40.0): []}, first_seed=3) == []
    assert store.last_due("a") == {"a": 40.0}
    assert [run.id for run in store.unfinished()] == [run.id for run in runs]


def test_a_cancellation_is_requested_and_audited(store: Store) -> None:
    run = store.enqueue("a", first_seed=0)
    assert store.request_cancel(run.id, actor="me", reason="too long")
    assert [r.cancel_requested for r in store.unfinished()] == [True]
    assert store.move(run.id, RunState.CANCELLED, error="cancelled by me")
    assert not store.request_cancel(run.id, actor="me", reason="again")
    assert not store.request_cancel("no-such-run", actor="me", reason="?")
    [change] = store.overrides.audit()
    assert (change.action, change.subject, change.reason) == ("cancel", run.id, "too long")
    stored = store.run(run.id)
    assert stored is not None
    assert stored.error == "cancelled by me"


def test_newest_first(store: Store) -> None:
    runs = [store.enqueue(agent, first_seed=0) for agent in ("a", "b", "a")]
    assert [run.id for run in store.runs("a")] == [runs[2].id, runs[0].id]
    assert len(store.runs(limit=2)) == 2
    assert store.run("no-such-run") is None


class AnyHistory(RuleBasedStateMachine):
    """Random calls, some of them invalid: the database enforces the rules."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory()
        self.store = new_store(Settings(home=Path(self.folder.name)), clock=lambda: 1.0)
        self.expected: dict[str, RunState] = {}
        self.agents: dict[str, str] = {}

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()

    @rule(agent=st.sampled_from("ab"))
    def enqueue(self, agent: str) -> None:
        run = self.store.enqueue(agent, first_seed=0)
        self.expected[run.id], self.agents[run.id] = run.state, agent

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), state=st.sampled_from(sorted(RunState)))
    def move(self, data, state: RunState) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.expected)))
        busy = {
            self.agents[active]
            for active, at in self.expected.items()
            if at in ACTIVE and active != run_id
        }
        if state in ACTIVE and self.agents[run_id] in busy:
            try:
                moved = self.store.move(run_id, state)
            except IntegrityError:
                moved = False
            assert not moved
            return
        allowed = state in TRANSITIONS[self.expected[run_id]]
        assert self.store.move(run_id, state) == allowed
        if allowed:
            self.expected[run_id] = state

    @invariant()
    def the_database_agrees(self) -> None:
        states = {run.id: run.state for run in self.store.runs(limit=1000)}
        assert states == self.expected
        unfinished = {run.id for run in self.store.unfinished()}
        assert unfinished == {k for k, state in self.expected.items() if state not in TERMINAL}


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = hypothesis_settings(max_examples=8, stateful_step_count=20)
