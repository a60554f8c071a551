"""The guard's journal: appended to by two processes, read by both."""

from dataclasses import asdict, replace

import structlog
from sqlalchemy import insert

from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.database import database_url, open_database
from genesis_fp16.store.schema import guard_decisions

TRIPPED = Decision(
    agent="a",
    state=GuardState.TRIPPED,
    at=5.0,
    trigger=Trigger.SCALE_FLOOR,
    level=2,
    until=9.0,
    run_id="r",
    step=7,
    reason="so many",
    evidence="guard/a/x.json",
)
CLEARED = replace(TRIPPED, state=GuardState.PROBATION, actor="ann", until=None, step=None)


def test_the_last_decision_on_an_agent_stands(store: Store) -> None:
    assert store.guard.latest() == {}
    other = replace(TRIPPED, agent="b", trigger=Trigger.UNDERFLOW)
    for decision in (TRIPPED, other, CLEARED):
        store.guard.add(decision)
    assert store.guard.latest() == {"a": CLEARED, "b": other}
    assert store.guard.history("a") == [CLEARED, TRIPPED]
    assert store.guard.history("a", limit=1) == [CLEARED]


def test_a_reader_hears_each_decision_once(store: Store) -> None:
    store.guard.add(TRIPPED)
    entry, heard = store.guard.since(0)
    assert heard == [TRIPPED]
    assert store.guard.since(entry) == (entry, [])
    store.guard.add(CLEARED)
    assert store.guard.since(entry)[1] == [CLEARED]


def test_only_an_operators_decision_is_audited(store: Store) -> None:
    store.guard.add(TRIPPED)
    store.guard.add(CLEARED)
    [change] = store.overrides.audit()
    assert (change.actor, change.action, change.subject) == ("ann", "guard clear", "a")


def test_a_row_that_nobody_can_read_costs_only_itself(store: Store, any_settings: Settings) -> None:
    store.guard.add(TRIPPED)
    row = {**asdict(TRIPPED), "state": "bogus"}
    engine = open_database(database_url(any_settings))
    with engine.begin() as connection:
        connection.execute(insert(guard_decisions).values(row))
    engine.dispose()
    with structlog.testing.capture_logs() as logs:
        assert store.guard.latest() == {"a": TRIPPED}
        assert store.guard.history("a") == [TRIPPED]
    assert {entry["event"] for entry in logs} == {"row_unreadable"}
