"""Rows that cannot be read are left out and logged with the remedy."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import structlog

from genesis_fp16.domain.run import Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.database import database_url, open_database
from genesis_fp16.store.unreadable_rows import count_unreadable_rows
from tests.genesis_fp16.new_store import new_store


@pytest.fixture
def store(home_settings: Settings) -> Iterator[Store]:
    """A store in SQLite, which accepts any value in any column."""
    with closing(new_store(home_settings)) as store:
        yield store


@pytest.fixture
def write(store: Store, home_settings: Settings) -> Callable[[str], None]:
    """Write to the store's database directly."""

    def write(statement: str) -> None:
        path = home_settings.home / "genesis.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return write


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("due_at", "'noon'"),
        ("steps", "'many'"),
        ("metrics", "'{'"),
        ("precision", "'[1]'"),
        ("metrics", f"'{'[' * 100_000}'"),
    ],
)
def test_an_unreadable_run_is_left_out_and_logged_once(
    store: Store, write: Callable[[str], None], column: str, value: str
) -> None:
    wrong, right = (store.enqueue("a", first_seed=0) for _ in range(2))
    write(f"UPDATE runs SET {column} = {value} WHERE id = '{wrong.id}'")
    with structlog.testing.capture_logs() as logs:
        for runs in (store.runs(), store.unfinished(), store.runs("a")):
            assert [run.id for run in runs] == [right.id]
        assert store.run(wrong.id) is None
    [line] = logs
    assert (line["event"], line["table"], line["row"]) == (
        "row_unreadable",
        "runs",
        {"id": wrong.id},
    )
    assert line["agent"] == "a"
    assert line["error"].startswith(f"{column}")
    assert value.strip("'")[:70] in line["error"]
    assert "correct the row" in line["remedy"]


def test_an_unreadable_attempt_is_left_out(store: Store, write: Callable[[str], None]) -> None:
    run = store.enqueue("a", first_seed=0)
    store.begin_attempt(run.id, "one")
    write("UPDATE attempts SET pid = 'none'")
    with structlog.testing.capture_logs() as logs:
        assert store.attempts(run.id) == store.attempts(run.id) == []
    assert [line["row"] for line in logs] == [{"run_id": run.id, "number": "1"}]


def succeeded(store: Store) -> Run:
    """A run of the agent a with a primary metric."""
    run = store.enqueue("a", first_seed=0)
    attempt = store.begin_attempt(run.id, run.id)
    assert attempt is not None
    shown = RunSummary(
        primary_metric="mse", primary_value=0.5, higher_is_better=False, steps=9, half_steps=9
    )
    store.update_summary(run.id, shown)
    done = RunTransition(state=RunState.SUCCEEDED)
    store.end_attempt(attempt, Ending(exit_code=0), done, finished_at=store.now())
    return run


def test_text_of_a_wrong_encoding_is_replaced(store: Store, write: Callable[[str], None]) -> None:
    run = store.enqueue("a", first_seed=0)
    write("UPDATE runs SET error = CAST(x'6f64ff' AS TEXT)")
    assert [(row.id, row.error) for row in store.runs()] == [
        (run.id, "od\N{REPLACEMENT CHARACTER}")
    ]


def test_a_success_with_an_invalid_time_is_ignored(
    store: Store, write: Callable[[str], None]
) -> None:
    valid, invalid = succeeded(store), succeeded(store)
    write(f"UPDATE runs SET finished_at = 'abc' WHERE id = '{invalid.id}'")
    first = store.run(valid.id)
    assert first is not None
    assert store.last_success("a") == first.finished_at


def test_an_agent_with_an_invalid_due_time_counts_as_new(
    store: Store, write: Callable[[str], None]
) -> None:
    store.record_due({DueTime(agent="a", last_due=5.0): []}, first_seed=0)
    write("UPDATE schedule_state SET last_due = 'abc'")
    with structlog.testing.capture_logs() as logs:
        assert store.last_due("a") == {}
    assert [line["table"] for line in logs] == ["schedule_state"]
    store.record_due({DueTime(agent="a", last_due=6.0): []}, first_seed=0)
    assert store.last_due("a") == {"a": 6.0}


@pytest.mark.parametrize("column", ["half_steps", "primary_value"])
def test_a_comparison_leaves_out_what_cannot_be_read(
    store: Store, write: Callable[[str], None], column: str
) -> None:
    wrong, right = succeeded(store), succeeded(store)
    for run in (wrong, right):
        twin = store.enqueue_baseline(run)
        attempt = store.begin_attempt(twin.id, twin.id)
        assert attempt is not None
        store.update_summary(twin.id, RunSummary(primary_metric="mse", primary_value=0.25, steps=9))
        done = RunTransition(state=RunState.SUCCEEDED)
        store.end_attempt(attempt, Ending(exit_code=0), done, finished_at=store.now())
    write(f"UPDATE runs SET {column} = 'abc' WHERE id = '{wrong.id}'")
    assert wrong.id not in [result.run_id for result in store.compared.results("a")]
    assert [(pair.half_run, pair.half, pair.fp32) for pair in store.compared.pairs("a")] == [
        (right.id, 0.5, 0.25)
    ]


def test_a_baseline_with_an_invalid_time_is_ignored(
    store: Store, write: Callable[[str], None]
) -> None:
    store.enqueue_baseline(succeeded(store))
    write("UPDATE runs SET created_at = 'abc' WHERE baseline_of IS NOT NULL")
    succeeded(store)
    assert store.compared.runs_since_baseline("a") == 2


def test_unreadable_rows_are_counted(
    store: Store, write: Callable[[str], None], home_settings: Settings
) -> None:
    engine = open_database(database_url(home_settings))
    succeeded(store)
    succeeded(store)
    assert count_unreadable_rows(engine) == {}
    write("UPDATE runs SET steps = 'abc'")
    write("UPDATE attempts SET pid = 'abc' WHERE run_id = (SELECT min(id) FROM runs)")
    assert count_unreadable_rows(engine) == {"runs": 2, "attempts": 1}
    engine.dispose()


def test_an_unreadable_run_waits_for_the_loop_until_its_row_is_corrected(
    store: Store, write: Callable[[str], None]
) -> None:
    wrong, right = (store.enqueue("a", first_seed=0) for _ in range(2))
    write(f"UPDATE runs SET number = 'one' WHERE id = '{wrong.id}'")
    for _ in range(2):
        assert store.unfinished_runs.read() == [right]
    write(f"UPDATE runs SET number = 1 WHERE id = '{wrong.id}'")
    assert store.unfinished_runs.read() == store.unfinished()
    assert wrong in store.unfinished_runs.read()
