"""Which pauses keep an agent from starting runs."""

import pytest
from pydantic import TypeAdapter, ValidationError

from genesis_fp16.domain.pause import Pause, pauses_of

MINE = Pause(agent="a", reason="moving", actor="ann", created_at=1.0)
ALL = Pause(agent=None, reason="flood", actor="bob", created_at=2.0)


def test_an_agent_waits_for_its_own_pause_and_for_that_of_all() -> None:
    assert pauses_of({}, "a") == ()
    assert pauses_of({"a": MINE}, "b") == ()
    assert pauses_of({None: ALL, "a": MINE}, "a") == (MINE, ALL)
    assert pauses_of({None: ALL, "a": MINE}, "b") == (ALL,)


def test_a_name_that_no_agent_can_have_is_refused_where_rows_are_read() -> None:
    row = {"agent": "A B", "reason": "", "actor": "", "created_at": 0.0, "stops_runs": False}
    with pytest.raises(ValidationError, match="agent"):
        TypeAdapter(Pause).validate_python(row)
