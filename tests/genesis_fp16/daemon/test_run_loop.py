"""What a round does about errors of the store and of listeners, and about lost rollbacks."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs

from genesis_fp16.daemon.run_loop import Listeners, RunLoop, StoreHealth
from genesis_fp16.daemon.startup import ProbeResults
from genesis_fp16.domain.precision import Override
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import Settings
from genesis_fp16.settings.rollback_memory import MEMORY_FILE
from genesis_fp16.store import Store
from infrastructure.events.event import Notice


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


class Recorder:
    def __init__(self) -> None:
        self.received: list[object] = []

    def on_event(self, agent: str, run_id: str, event) -> None:
        self.received.append((agent, run_id, event))

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        self.received.append((agent, run_id, state))


class Broken:
    def on_event(self, agent: str, run_id: str, event) -> None:
        raise RuntimeError("broken")

    def on_run_state(self, agent: str, run_id: str, state: str) -> None:
        raise KeyError(state)


def test_the_others_are_called_and_each_error_is_logged_once() -> None:
    recorder, notice = Recorder(), Notice(event="greeting")
    listeners = Listeners([Broken(), recorder])
    with capture_logs() as logs:
        for _ in range(3):
            listeners.on_event("a", "r", notice)
        listeners.on_run_state("a", "r", "failed")
    assert recorder.received == [("a", "r", notice)] * 3 + [("a", "r", "failed")]
    assert [entry["failure"] for entry in logs] == [
        "Broken: RuntimeError('broken')",
        "Broken: KeyError('failed')",
    ]


HARDWARE = Hardware(device="cuda", fp16=True, bf16=True, torch_version="2.9")
ROLLBACK = Override(
    agent="a", precision="fp32", reason="odd loss", actor="ann", created_at=5.0, expires_at=9e9
)


def rounds(store: Store, settings: Settings) -> tuple[str, list[str]]:
    """Why agent `a` has its precision in a daemon of that store, and what was logged."""
    with capture_logs() as lines:
        loop = RunLoop(settings, store, ProbeResults(hardware=HARDWARE), [])
        loop.begin_round(0.0)
        loop.dispatch(0.0)
        return loop.resolver.for_agent("a").reason, [line["event"] for line in lines]


def test_an_override_is_restored_in_another_database(home_settings: Settings) -> None:
    with closing(Store.open(home_settings)) as store:
        store.overrides.set(ROLLBACK)
        assert rounds(store, home_settings) == ("operator", [])
    elsewhere = home_settings.model_copy(
        update={"database_url": f"sqlite:///{home_settings.home}.db"}
    )
    with closing(Store.open(elsewhere)) as store:
        assert rounds(store, elsewhere) == ("operator", ["override_restored"])
        assert rounds(store, elsewhere) == ("operator", [])
        assert store.overrides.audit()[0].action == "precision restored"
        assert store.overrides.clear("a", actor="ann", reason="it was the data")
        assert rounds(store, elsewhere) == ("default", [])
        assert not (elsewhere.home / MEMORY_FILE).exists()


def test_an_override_that_is_deleted_under_a_daemon_stays_in_force(
    store: Store, home_settings: Settings
) -> None:
    store.overrides.set(ROLLBACK)
    loop = RunLoop(home_settings, store, ProbeResults(hardware=HARDWARE), [])
    engine = create_engine(f"sqlite:///{home_settings.home / 'genesis.db'}")
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM overrides"))
    engine.dispose()
    loop.begin_round(0.0)
    loop.dispatch(0.0)
    assert loop.resolver.for_agent("a").reason == "operator"


def test_a_withdrawn_or_expired_override_stays_so(store: Store, home_settings: Settings) -> None:
    store.overrides.set(ROLLBACK)
    rounds(store, home_settings)
    store.overrides.clear("a", actor="ann", reason="done")
    assert store.overrides.restore([ROLLBACK]) == []
    ended = Override(
        agent="b", precision="fp32", reason="r", actor="ann", created_at=6.0, expires_at=7.0
    )
    assert store.overrides.restore([ended]) == []


def test_the_flag_is_remembered_while_the_store_fails(
    home_settings: Settings, tmp_path: Path
) -> None:
    """A rollback by the file needs no database, and neither does its memory."""
    file = tmp_path / ".env"
    settings = home_settings.model_copy(update={"env_file": file})
    with closing(Store.open(settings)) as store:
        loop = RunLoop(settings, store, ProbeResults(hardware=HARDWARE), [])
        (settings.home / "genesis.db").rename(tmp_path / "away.db")
        file.write_text("ENABLE_FP16_TRAINING=false\n")
        loop.begin_round(1.0, reload=True)
        assert "ENABLE_FP16_TRAINING" in (settings.home / MEMORY_FILE).read_text()


def test_a_wrong_line_that_means_fp32_decides_and_is_remembered(
    store: Store, home_settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    loop = RunLoop(
        home_settings.model_copy(update={"env_file": file}),
        store,
        ProbeResults(hardware=HARDWARE),
        [],
    )
    file.write_text("enable_fp16_training=false\n")
    loop.begin_round(1.0, reload=True)
    loop.dispatch(1.0)
    decided = loop.resolver.for_agent("a")
    assert (decided.effective, decided.reason) == ("fp32", "flag")
    assert "line 1 was taken" in loop.settings_error
    file.write_text("# nothing\n")
    loop.begin_round(2.0, reload=True)
    assert loop.resolver.for_agent("a").effective == "fp32"
    assert "was false" in loop.settings_error
