"""``genesis-fp16 agents pause`` and ``resume``."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from genesis_fp16.store import Store

Ask = Callable[..., Result]
AskJson = Callable[..., object]


def test_one_agent_is_paused_and_resumed(ask: Ask, ask_json: AskJson, store: Store) -> None:
    paused = ask_json("agents", "pause", "se-darwin", "--reason", "new\ndisk", "--now")
    assert paused["reason"] == "new disk"
    assert paused["stops_runs"] is True
    assert store.pauses.in_force()["se-darwin"].actor
    assert "goes on; --now" in ask("agents", "pause", "--all", "--reason", "audit").stdout
    result = ask("agents", "resume", "se-darwin", "--reason", "there")
    assert result.stdout == "resumed se-darwin\n"
    assert "still paused" in result.stderr
    assert list(store.pauses.in_force()) == [None]
    assert ask_json("agents", "resume", "--all", "--reason", "done") == {
        "agent": None,
        "resumed": True,
    }
    again = ask("agents", "resume", "se-darwin", "--reason", "again")
    assert (again.exit_code, again.stdout) == (0, "no pause of se-darwin is in force\n")
    assert [change.action for change in store.overrides.audit()] == [
        "resume",
        "resume",
        "pause",
        "pause",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["se-darwin", "--all", "--reason", "x"], "or give --all"),
        (["--reason", "x"], "or give --all"),
        (["se-darvin", "--reason", "x"], "mean se-darwin"),
        (["se-darwin"], "Missing option '--reason'"),
    ],
)
def test_wrong_arguments_change_nothing(
    ask: Ask, store: Store, arguments: list[str], message: str
) -> None:
    for command in ("pause", "resume"):
        result = ask("agents", command, *arguments)
        assert result.exit_code == 2
        assert message in " ".join(result.output.replace("│", "").split())
    assert store.pauses.in_force() == {}
    assert store.overrides.audit() == []


def test_an_empty_reason_is_refused(ask: Ask, store: Store) -> None:
    result = ask("agents", "pause", "se-darwin", "--reason", " \n")
    assert (result.exit_code, "give a reason" in result.output) == (2, True)
    assert store.pauses.in_force() == {}


@pytest.mark.process
@pytest.mark.usefixtures("forked")
def test_the_list_of_agents_shows_who_is_paused_and_why(
    ask: Ask, ask_json: AskJson, install_plugin: Callable[..., None], store: Store, folder
) -> None:
    (folder / ".env").write_text("GENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    install_plugin("fine")
    ask_json("agents", "pause", "fine", "--reason", "its data moves")
    rows = {row["name"]: row for row in ask_json("agents")}
    assert rows["fine"]["paused"][0]["reason"] == "its data moves"
    assert rows["se-darwin"]["paused"] == []
    assert "fine paused since 20" in ask("agents").stdout
    store.close()
    (folder / ".genesis" / "genesis.db").write_bytes(b"no database" * 100)
    result = ask("agents", "--json")
    assert json.loads(result.stdout)[0]["paused"] is None
    assert "is unknown" in result.stderr
