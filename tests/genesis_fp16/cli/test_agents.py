"""``genesis-fp16 agents``, on really installed plugins."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

Ask = Callable[..., Result]

pytestmark = pytest.mark.process


def test_agents_answer_without_a_daemon(
    ask: Ask,
    ask_json: Callable[..., object],
    install_plugin: Callable[..., None],
    folder: Path,
) -> None:
    (folder / ".env").write_text("GENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    install_plugin("fine")
    install_plugin("broken", "raise RuntimeError('no luck')")
    with (folder / ".env").open("a") as file:
        file.write('GENESIS_AGENTS__FINE__SCHEDULE="every 5m"\n')
    agents = {row["name"]: row for row in ask_json("agents")}
    assert agents["fine"]["state"] == "ready"
    assert agents["fine"]["schedule"] == "every 5m"
    assert agents["broken"]["state"] == "quarantined"
    assert "no luck" in agents["broken"]["reason"]
    assert agents["se-darwin"]["state"] == "disabled"
    text = ask("agents").stdout
    assert "broken_plugin failed: RuntimeError: no luck" in text
