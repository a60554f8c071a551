"""One line for trouble that lasts, one for its end, and no other error swallowed."""

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from genesis_fp16.daemon.store_trouble import StoreTrouble


def test_trouble_is_told_once_and_its_end_too() -> None:
    engine, trouble = create_engine("sqlite://"), StoreTrouble()
    with capture_logs() as lines:
        for query in ("SELECT * FROM missing", "SELECT * FROM missing", "SELECT 1"):
            with trouble.tolerated(), engine.connect() as connection:
                connection.execute(text(query))
            assert bool(trouble.text) == ("missing" in query)
    assert [line["event"] for line in lines] == ["store_failed", "store_works_again"]
    assert lines[0]["error"] == "no such table: missing"
    engine.dispose()


def test_other_errors_pass() -> None:
    with pytest.raises(KeyError), StoreTrouble().tolerated():
        raise KeyError
