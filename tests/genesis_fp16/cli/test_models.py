"""``genesis-fp16 models``."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

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
