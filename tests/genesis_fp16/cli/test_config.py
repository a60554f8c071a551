"""``genesis-fp16 config``: values, sources, no secrets."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result


def test_config_names_sources_and_hides_secrets(
    ask_json: Callable[..., object], folder: Path
) -> None:
    (folder / ".env").write_text(
        "GENESIS_SLOTS=3\n"
        "GENESIS_DATABASE_URL=postgresql://me:hunter2@db/x\n"
        "GENESIS_AGENTS__A__SETTINGS__API_TOKEN=hunter2\n"
    )
    rows = {row["name"]: row for row in ask_json("config", "show")}
    assert (rows["GENESIS_SLOTS"]["value"], rows["GENESIS_SLOTS"]["source"]) == ("3", ".env line 1")
    assert rows["GENESIS_SEED"]["source"] == "default"
    assert "hunter2" not in json.dumps(rows)


def test_config_warns_of_a_removed_setting(ask: Callable[..., Result], folder: Path) -> None:
    (folder / ".env").write_text("GENESIS_FLEET=auto\n")
    answer = ask("config", "show")
    assert answer.stderr.startswith("warning: GENESIS_FLEET (.env line 1)")
    assert "GENESIS_FLEET" not in answer.stdout


def test_config_warns_of_an_unknown_name(ask: Callable[..., Result], folder: Path) -> None:
    (folder / ".env").write_text("GENESIS_ENV=production\nGENESIS_SLOT=2\n")
    assert ask("config", "show").stderr.startswith("warning: GENESIS_SLOT (.env line 2)")


@pytest.mark.parametrize(
    "setting",
    [
        "SETTINGS__URL=https://u:hunter2@h/",
        'SETTINGS__DB={"password":"hunter2"}',
        'SETTINGS__DB={"hosts":[{"api_key":"hunter2"}]}',
        'SETTINGS__DB={"url":"https://u:hunter2@h/"}',
        'SETTINGS__DB={"password":"hunter2"',
        "SETTINGS__DB__PASSWORD=hunter2",
        "SETTINGS__DSN='host=h password=hunter2'",
        'SETTINGS={"password":"hunter2"}',
    ],
)
def test_config_hides_secrets_inside_the_settings_of_an_agent(
    ask: Callable[..., Result], folder: Path, setting: str
) -> None:
    (folder / ".env").write_text(f"GENESIS_AGENTS__A__{setting}\n")
    for arguments in (["config", "show"], ["config", "show", "--json"]):
        result = ask(*arguments)
        assert "GENESIS_AGENTS__A__SETTINGS" in result.output
        assert "hunter2" not in result.output


def test_an_error_of_config_hides_secrets(ask: Callable[..., Result], folder: Path) -> None:
    (folder / ".env").write_text(
        'GENESIS_AGENTS__A__SETTINGS={"api_key":"hunter2"\n'
        "GENESIS_AGENTS__A__SETING__API_TOKEN=hunter2\n"
        "GENESIS_DATABASE_URL=u:hunter2@h/d\nGENESIS_HOME 'hunter2\n"
    )
    result = ask("config", "show", "--json")
    assert result.exit_code != 0
    assert "hunter2" not in f"{result.output}{result.exception}"
