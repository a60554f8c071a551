"""Back to an earlier version of a model: audited, and only while no run publishes."""

from pathlib import Path

import pytest

from genesis_fp16.daemon import models
from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    ModelVersionError,
    describe_published,
    keep_version,
    publishing,
    version_in_use,
)
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store


@pytest.fixture
def agent(home_settings: Settings) -> Path:
    """The folder of the agent a, whose model has the versions r1, r2 and r3, the last in use."""
    folder, replaced = home_settings.home / "agents" / "a", None
    (folder / "published").mkdir(parents=True)
    for number in (1, 2, 3):
        (folder / "published" / "model.bin").write_text(f"model {number}")
        version = ModelVersion(
            id=f"r{number}",
            run_id=f"r{number}",
            published_at=float(number),
            replaced=replaced,
            reason="better",
            metrics={},
            data=DataFacts(transitions=1, size=1, sha256="0"),
            files=describe_published(folder),
        )
        keep_version(folder, version, keep=5)
        replaced = version.id
    return folder


def test_a_rollback_goes_to_what_was_in_use_before_and_is_audited(
    home_settings: Settings, store: Store, agent: Path
) -> None:
    def roll_back(to: str | None = None) -> str:
        return models.roll_back(home_settings, store, "a", to, actor="ann", reason="odd").id

    assert roll_back() == "r2"
    assert roll_back() == "r1"
    assert (agent / "published" / "model.bin").read_text() == "model 1"
    with pytest.raises(ModelVersionError, match="--to: r3, r2"):
        roll_back()
    with pytest.raises(ModelVersionError, match="r1 of a is in use"):
        roll_back("r1")
    with pytest.raises(ModelVersionError, match="'r9'; kept: r1, r2, r3"):
        roll_back("r9")
    assert roll_back("r3") == "r3"
    kept = models.list_models(home_settings, "a")
    assert kept.in_use == "r3"
    [newest, *_, oldest] = store.overrides.audit()
    assert (newest.action, newest.subject, newest.actor) == ("models rollback", "a", "ann")
    assert (newest.reason, newest.details) == ("odd", {"from": "r1", "to": "r3"})
    assert oldest.details == {"from": "r3", "to": "r2"}
    assert len(store.overrides.audit()) == 3, "what was refused has changed nothing"


def test_a_rollback_that_fails_is_in_the_audit_trail(
    home_settings: Settings, store: Store, agent: Path
) -> None:
    (agent / "published" / "model.bin").unlink()
    (agent / "published" / "model.bin").mkdir()
    (agent / "published" / "model.bin" / ".hidden").touch()
    with pytest.raises(OSError, match=r"model\.bin"):
        models.roll_back(home_settings, store, "a", "r1", actor="ann", reason="odd")
    assert [change.reason[:6] for change in store.overrides.audit()] == ["failed", "odd"]


def test_a_run_that_publishes_comes_first(
    home_settings: Settings, store: Store, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "WAIT_SECONDS", 0.05)
    busy = pytest.raises(ModelVersionError, match="is publishing")
    with publishing(agent, wait_seconds=0.0), busy:
        models.roll_back(home_settings, store, "a", "r1", actor="ann", reason="odd")
    versions = models.list_models(home_settings, "a").versions
    assert version_in_use(agent, versions) == "r3"
    assert store.overrides.audit() == []


def test_a_version_is_taken_back_to_the_one_before_and_at_last_to_none(
    home_settings: Settings, store: Store, agent: Path
) -> None:
    assert models.take_back(home_settings, "a", "r3", ()) == "r2"
    assert (agent / "published" / "model.bin").read_text() == "model 2"
    with pytest.raises(ModelVersionError, match="r3 of a is not in use"):
        models.take_back(home_settings, "a", "r3", ())
    assert models.take_back(home_settings, "a", "r2", ("r3",)) == "r1"
    assert models.take_back(home_settings, "a", "r1", ("r3", "r2")) is None
    assert describe_published(agent) == {}
    assert models.list_models(home_settings, "a").in_use is None
    roll_back = models.roll_back(home_settings, store, "a", "r3", actor="ann", reason="odd")
    assert roll_back.id == "r3", "what was taken back is kept"


def test_nothing_comes_back_that_is_damaged_or_was_taken_back(
    home_settings: Settings, agent: Path
) -> None:
    (agent / "versions" / "r2" / "files" / "model.bin").write_text("MODEL 2")  # the same size
    assert models.take_back(home_settings, "a", "r3", ()) == "r1"
    with publishing(agent, wait_seconds=0.0), pytest.raises(ModelVersionError, match="publishing"):
        models.take_back(home_settings, "a", "r1", ())
    assert models.take_back(home_settings, "a", "r1", ()) is None


def test_a_version_is_never_taken_forward(home_settings: Settings, store: Store, agent: Path):
    models.roll_back(home_settings, store, "a", "r1", actor="ann", reason="odd")
    assert models.take_back(home_settings, "a", "r1", ()) is None
    assert describe_published(agent) == {}


def test_an_operator_keeps_the_version_in_use(
    home_settings: Settings, store: Store, agent: Path
) -> None:
    assert store.overrides.kept_models() == {}
    assert models.keep_in_use(home_settings, store, "a", actor="ann", reason="mine") == "r3"
    assert store.overrides.kept_models() == {"a": "r3"}
    models.take_back(home_settings, "a", "r3", ("r1", "r2"))
    with pytest.raises(ModelVersionError, match="no kept version of a is in use"):
        models.keep_in_use(home_settings, store, "a", actor="ann", reason="mine")
