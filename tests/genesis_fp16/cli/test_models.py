"""``genesis-fp16 models``."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.guard.models import WatchedAgent
from genesis_fp16.guard.models.watch import path_of
from genesis_fp16.plugins.model_versions import (
    DataFacts,
    ModelVersion,
    describe_published,
    keep_version,
)
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store

Ask = Callable[..., Result]


@pytest.fixture
def agent(folder: Path) -> Path:
    """The folder of se-darwin with the versions r1 and r2 of its model."""
    agent = load_settings().home / "agents" / "se-darwin"
    (agent / "published").mkdir(parents=True)
    for number, replaced in ((1, None), (2, "r1")):
        (agent / "published" / "model.bin").write_text(f"model {number}")
        version = ModelVersion(
            id=f"r{number}",
            run_id=f"r{number}",
            published_at=float(number),
            replaced=replaced,
            reason=f"better by {number}",
            metrics={"skill": 0.5},
            data=DataFacts(transitions=321, size=1 << 20, sha256="abcdef" * 8),
            files=describe_published(agent),
        )
        keep_version(agent, version, keep=5)
    return agent


def test_versions_are_listed_and_one_is_put_back(
    ask: Ask, ask_json: Callable[..., object], store: Store, agent: Path
) -> None:
    text = ask("models", "list", "se-darwin").stdout.splitlines()
    assert text[1].split()[:3] == ["r2", "in", "use"]
    assert "321" in text[2]
    assert "1.00 MiB" in text[2]
    assert "abcdefabcdef" in text[2]
    assert "better by 1" in text[2]
    done = ask("models", "rollback", "se-darwin", "--reason", "it\nlies")
    assert done.exit_code == 0
    assert "version r1" in done.stdout
    assert (agent / "published" / "model.bin").read_text() == "model 1"
    assert store.overrides.audit()[0].reason == "it lies"
    answer = ask_json("models", "list", "se-darwin")
    assert answer["in_use"] == "r1"
    assert answer["versions"][0]["metrics"] == {"skill": 0.5}
    again = ask_json("models", "rollback", "se-darwin", "--to", "r2", "--reason", "no")
    assert again["id"] == "r2"
    (agent / "published" / "model.bin").write_text("mine")
    (agent / "versions/r1/files/model.bin").write_text("damaged")
    shown = ask("models", "list", "se-darwin").stdout
    assert "none of these" in shown
    assert "damaged" in shown


def test_wrong_names_and_missing_reasons_are_refused(ask: Ask, store: Store) -> None:
    assert "mean se-darwin" in ask("models", "list", "se-darvin").output
    assert ask("models", "rollback", "se-darwin").exit_code == 2
    assert "none was published" in ask("models", "list", "se-darwin").stdout
    refused = ask("models", "rollback", "se-darwin", "--reason", "x")
    assert "no other version" in str(refused.exception)
    assert store.overrides.audit() == []


@pytest.mark.usefixtures("store")
def test_the_guard_is_shown_and_told_to_keep_a_version(
    ask: Ask, ask_json: Callable[..., object], agent: Path
) -> None:
    losses = {"log_loss": 0.9, "held_out_loss": 0.5, "base_rate_loss": 0.8}
    reading = ModelReading(
        version="r2", outcomes=1250, skill_lost=1.3, evidence=0.4, coverage=0.71, **losses
    )
    explanation = "the predictions of version r3 no longer hold"
    watched = WatchedAgent(reading=reading, taken_back=["r3"], explanation=explanation)
    path = path_of(agent.parent.parent, "se-darwin")
    path.parent.mkdir()
    path.write_text(watched.model_dump_json())
    assert ask("models", "keep", "se-darwin", "--reason", "mine").exit_code == 0
    text = " ".join(ask("models", "list", "se-darwin").stdout.split())
    assert "the guard took version r3 back: the predictions of version r3 no longer hold" in text
    assert "in 1,250 outcomes, version r2 has the log loss 0.9000 (0.5000 held out" in text
    assert "40% of what the guard asks for" in text
    assert "coverage of 90 % intervals 0.710" in text
    assert "an operator keeps it in use" in text
    guard = ask_json("models", "list", "se-darwin")["guard"]
    assert (guard["kept"], guard["taken_back"], guard["reading"]["evidence"]) == ("r2", ["r3"], 0.4)
