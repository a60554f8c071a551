"""Pauses: of one agent or of all; they outlive the store's process, and damaged rows hold."""

from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from genesis_fp16.domain.pause import Pause, pauses_of
from genesis_fp16.store import Store
from genesis_fp16.store.database import database_url
from genesis_fp16.store.pauses import AgentPausedError

MINE = Pause(agent="a", reason="moving house", actor="ann", created_at=1.0)
ALL = replace(MINE, agent=None, reason="a flood", stops_runs=True)


def test_a_pause_outlives_its_process_and_is_audited(store: Store, any_settings) -> None:
    store.pauses.begin(MINE)
    store.pauses.begin(replace(MINE, reason="still moving"))
    store.pauses.begin(ALL)
    again = Store.open(any_settings)
    pauses = again.pauses.in_force()
    assert pauses == {"a": replace(MINE, reason="still moving"), None: ALL}
    assert pauses_of(pauses, "b") == (ALL,)
    assert [pause.agent for pause in pauses_of(pauses, "a")] == ["a", None]
    with pytest.raises(AgentPausedError, match=r"ann: still moving.*resume a "):
        again.pauses.check("a")
    with pytest.raises(AgentPausedError, match=r"all agents .*ann: a flood.*--all"):
        again.pauses.check("b")

    assert again.pauses.end(None, actor="bob", reason="dry")
    assert not again.pauses.end(None, actor="bob", reason="dry")
    again.close()
    assert list(store.pauses.in_force()) == ["a"]
    store.pauses.check("b")
    assert [
        (change.action, change.subject, change.actor) for change in store.overrides.audit()
    ] == [
        ("resume", "all", "bob"),
        ("pause", "all", "ann"),
        ("pause", "a", "ann"),
        ("pause", "a", "ann"),
    ]
    assert store.overrides.audit()[1].details == {"stops_runs": True}


def test_a_pause_that_cannot_be_read_stays_in_force_and_can_be_ended(
    store: Store, any_settings
) -> None:
    store.pauses.begin(MINE)
    store.pauses.begin(replace(MINE, agent="b"))
    engine = create_engine(database_url(any_settings))
    with engine.begin() as connection:
        connection.execute(text("UPDATE pauses SET agent = 'No Agent' WHERE agent = 'b'"))
        if engine.dialect.name == "sqlite":
            connection.execute(text("UPDATE pauses SET created_at = 'once' WHERE agent = 'a'"))
    engine.dispose()
    pauses = store.pauses.in_force()
    assert pauses.keys() == {"a", None}, "whose agent cannot be read holds for all"
    assert "cannot be read" in pauses[None].reason
    assert store.pauses.end(None, actor="bob", reason="mended")
    assert store.pauses.end("a", actor="bob", reason="mended")
    assert store.pauses.in_force() == {}
