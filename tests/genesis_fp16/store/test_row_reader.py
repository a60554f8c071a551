"""A row that somebody else wrote wrongly is left out, and said by name with the remedy."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import structlog

from genesis_fp16.settings import Settings
from genesis_fp16.store import Store


@pytest.fixture
def store(home_settings: Settings) -> Iterator[Store]:
    """In SQLite, which takes any value in any column."""
    with closing(Store.open(home_settings)) as store:
        yield store


@pytest.fixture
def write(store: Store, home_settings: Settings) -> Callable[[str], None]:
    """Write into the store's database by other means."""

    def write(statement: str) -> None:
        path = home_settings.home / "genesis.db"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(statement)

    return write


@pytest.mark.parametrize(
    ("column", "value"),
    [("due_at", "'noon'"), ("steps", "'many'"), ("metrics", "'{'"), ("precision", "'[1]'")],
)
def test_one_run_is_left_out_and_named_once(
    store: Store, write: Callable[[str], None], column: str, value: str
) -> None:
    wrong, right = (store.enqueue("a", first_seed=0) for _ in range(2))
    write(f"UPDATE runs SET {column} = {value} WHERE id = '{wrong.id}'")
    with structlog.testing.capture_logs() as logs:
        for found in (store.runs(), store.unfinished(), store.runs("a")):
            assert [run.id for run in found] == [right.id]
        assert store.run(wrong.id) is None
    [line] = logs
    assert (line["event"], line["table"], line["row"]) == (
        "row_unreadable",
        "runs",
        {"id": wrong.id},
    )
    assert line["agent"] == "a"
    assert line["error"].startswith(f"{column}")
    assert value.strip("'") in line["error"]
    assert "correct the row" in line["remedy"]


def test_so_is_an_attempt(store: Store, write: Callable[[str], None]) -> None:
    run = store.enqueue("a", first_seed=0)
    store.begin_attempt(run.id, "one")
    write("UPDATE attempts SET pid = 'none'")
    with structlog.testing.capture_logs() as logs:
        assert store.attempts() == store.attempts(run.id) == []
    assert [line["row"] for line in logs] == [{"run_id": run.id, "number": "1"}]
