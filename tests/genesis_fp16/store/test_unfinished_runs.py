"""Unfinished runs: what a full read returns, and few rows read in full."""

from collections.abc import Iterator

import pytest
from sqlalchemy import event

from genesis_fp16.domain.run import RunState
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.store import Store


@pytest.fixture
def read_in_full(store: Store) -> Iterator[list[int]]:
    """Numbers of runs that a query named to read them in full."""
    named: list[int] = []

    def note(_connection, _cursor, statement: str, parameters, _context, _many) -> None:
        if "WHERE runs.id IN" in statement and "SELECT" in statement:
            named.append(len(parameters))

    event.listen(store._engine, "before_cursor_execute", note)
    yield named
    event.remove(store._engine, "before_cursor_execute", note)


def queue(store: Store, count: int) -> None:
    due = {DueTime(agent=f"agent-{n:04}", last_due=1.0): [float(n)] for n in range(count)}
    store.record_due(due, first_seed=0)


def test_only_changed_runs_are_read_in_full(store: Store, read_in_full: list[int]) -> None:
    queue(store, 1000)
    runs = store.unfinished_runs
    assert runs.read() == store.unfinished()
    assert sum(read_in_full) == 1000
    read_in_full.clear()
    assert runs.read() == store.unfinished()
    assert read_in_full == []
    changed = [run.id for run in runs.read()[:3]]
    store.begin_attempt(changed[0], "incarnation")
    store.request_cancel(changed[1], actor="someone", reason="a test")
    store.move(changed[2], RunState.CANCELLED)
    store.enqueue("agent-0007", first_seed=0)
    assert runs.read() == store.unfinished()
    assert read_in_full == [3], "the third is finished, and one is new"
