"""The store as commands open it: missing, lost, empty."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.store import Store

Ask = Callable[..., Result]


@pytest.mark.parametrize(
    "words", [("runs",), ("precision", "show"), ("precision", "set", "fp32", "--reason", "r")]
)
def test_a_lost_database_is_not_replaced_by_an_empty_one(
    ask: Ask, store: Store, folder: Path, words: tuple[str, ...]
) -> None:
    run = store.enqueue("a", first_seed=1)
    home = folder / ".genesis"
    for file in home.glob("genesis.db*"):
        file.rename(folder / file.name)
    (home / "runs" / run.id).mkdir(parents=True, exist_ok=True)
    assert "genesis.db is gone" in str(ask(*words).exception)
    assert not (home / "genesis.db").exists()
    (home / "genesis.db").touch()
    assert "genesis.db is empty" in str(ask(*words).exception)
    assert (home / "genesis.db").stat().st_size == 0


def test_commands_work_before_there_is_a_store_and_create_none(
    ask: Ask, ask_json: Callable[..., object], folder: Path
) -> None:
    assert ask_json("runs") == []
    result = ask("runs")
    assert result.exit_code == 0
    assert "no runs" in result.stdout
    assert ask_json("precision")["overrides"] == []
    assert ask_json("precision", "clear") == {"agent": None, "cleared": False}
    assert isinstance(ask("runs", "show", "nope").exception, GenesisError)
    assert not (folder / ".genesis").exists()
