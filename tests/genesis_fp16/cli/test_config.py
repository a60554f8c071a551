"""``genesis-fp16 config``: values, sources, no secrets."""

import json
from collections.abc import Callable
from pathlib import Path


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
