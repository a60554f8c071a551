"""An error of the store is logged once, so is its end, and no other error is caught."""

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from genesis_fp16.daemon.run_loop import StoreHealth


def test_a_failing_store_is_logged_once_and_so_is_its_recovery() -> None:
    engine, health = create_engine("sqlite://"), StoreHealth()
    with capture_logs() as lines:
        for query in ("SELECT * FROM missing", "SELECT * FROM missing", "SELECT 1"):
            with health.catch_errors(), engine.connect() as connection:
                connection.execute(text(query))
            assert bool(health.problem) == ("missing" in query)
    assert [line["event"] for line in lines] == ["store_failed", "store_recovered"]
    assert lines[0]["error"] == "no such table: missing"
    engine.dispose()


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), StoreHealth().catch_errors():
        raise KeyError
