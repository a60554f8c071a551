"""Overrides: one in force per scope. The guard's decisions: appended, and read by others."""

import sqlite3
from contextlib import closing
from dataclasses import asdict, replace

import pytest
import structlog
from sqlalchemy import insert

from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from genesis_fp16.domain.precision import Override, applicable_overrides
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.database import database_url, open_database
from genesis_fp16.store.schema import guard_decisions
from tests.genesis_fp16.new_store import new_store

ALL = Override(agent=None, precision="fp32", reason="odd loss", actor="me", created_at=1.0)
MINE = replace(ALL, agent="a", precision="bf16")
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


@pytest.fixture
def clock() -> list[float]:
    return [10.0]


@pytest.fixture
def overrides(any_settings: Settings, clock: list[float]):
    store = new_store(any_settings, clock=lambda: clock[0])
    yield store.overrides
    store.close()


def test_each_scope_has_one(overrides) -> None:
    overrides.set(ALL)
    overrides.set(MINE)
    assert overrides.in_force() == [ALL, MINE]
    overrides.set(replace(MINE, precision="fp16"))
    assert overrides.in_force() == [ALL, replace(MINE, precision="fp16")]


def test_an_override_expires(overrides, clock) -> None:
    overrides.set(replace(ALL, expires_at=20.0))
    clock[0] = 19.9
    assert len(overrides.in_force()) == 1
    clock[0] = 20.0
    assert overrides.in_force() == []
    assert not overrides.clear(None, actor="me", reason="late")


def test_an_override_for_the_next_run_leaves_the_earlier_one_to_runs_under_way(overrides) -> None:
    later = replace(ALL, precision="fp16", created_at=10.0, next_run=True)
    overrides.set(ALL)
    overrides.set(later)
    assert overrides.in_force() == [ALL, later]
    assert overrides.clear(None, actor="me", reason="both")
    assert overrides.in_force() == []


def test_what_was_replaced_does_not_come_back(overrides, clock) -> None:
    overrides.set(ALL)
    overrides.set(MINE)
    overrides.set(replace(ALL, precision="fp16", created_at=10.0, next_run=True, expires_at=20.0))
    clock[0] = 20.0
    assert overrides.in_force() == [MINE]


def test_clearing_one_scope_leaves_the_other(overrides) -> None:
    overrides.set(ALL)
    overrides.set(MINE)
    assert overrides.clear(None, actor="you", reason="it was the data")
    assert overrides.in_force() == [MINE]
    assert not overrides.clear("b", actor="you", reason="?")
    assert [(c.actor, c.action, c.subject, c.reason) for c in overrides.audit()] == [
        ("you", "precision clear", "all", "it was the data"),
        ("me", "precision set", "a", "odd loss"),
        ("me", "precision set", "all", "odd loss"),
    ]
    assert overrides.audit(limit=2)[1].details == {
        "precision": "bf16",
        "expires_at": None,
        "next_run": False,
    }


@pytest.mark.parametrize(
    ("column", "value", "whom"),
    [
        ("precision", "FP32 ", "a"),
        ("created_at", "noon", "a"),
        ("expires_at", "never", "a"),
        ("withdrawn_at", "long ago", "a"),
        ("agent", "A ", None),
        ("agent", b"\xff", None),
    ],
)
def test_an_unreadable_override_demands_fp32_until_it_is_cleared(
    home_settings: Settings, column: str, value: object, whom: str | None
) -> None:
    path = home_settings.home / "genesis.db"
    with closing(new_store(home_settings)) as store, closing(sqlite3.connect(path)) as database:
        store.overrides.set(MINE)
        with database:
            database.execute(f"UPDATE overrides SET {column} = ?", (value,))
        store.overrides.set(replace(ALL, precision="fp16", next_run=True))
        [_, unreadable] = store.overrides.in_force()
        assert (unreadable.agent, unreadable.precision, unreadable.next_run) == (
            whom,
            "fp32",
            False,
        )
        assert unreadable.reason.startswith("override 1 cannot be read")
        assert applicable_overrides([unreadable], "a", 0.0)
        assert store.overrides.clear(whom, actor="me", reason="over")
        assert [
            override for override in store.overrides.in_force() if override.precision == "fp32"
        ] == []


def test_a_change_that_cannot_be_read_is_left_out(home_settings: Settings) -> None:
    path = home_settings.home / "genesis.db"
    with closing(new_store(home_settings)) as store, closing(sqlite3.connect(path)) as database:
        store.overrides.set(ALL)
        store.overrides.set(MINE)
        with database:
            database.execute("UPDATE audit SET at = 'abc' WHERE subject = 'a'")
        assert [change.subject for change in store.overrides.audit()] == ["all"]


def test_the_last_decision_on_an_agent_is_in_force(store: Store) -> None:
    assert store.guard.latest() == {}
    of_b = replace(TRIPPED, agent="b", trigger=Trigger.UNDERFLOW)
    for decision in (TRIPPED, of_b, CLEARED):
        store.guard.add(decision)
    assert store.guard.latest() == {"a": CLEARED, "b": of_b}
    assert store.guard.history("a") == [CLEARED, TRIPPED]
    assert store.guard.history("a", limit=1) == [CLEARED]


def test_a_reader_gets_each_decision_once(store: Store) -> None:
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


def test_an_unreadable_decision_is_left_out(store: Store, any_settings: Settings) -> None:
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
