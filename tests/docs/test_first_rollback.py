"""The files that a reader of the tutorial types make its agent and its settings."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from genesis_fp16.cli.app import app
from genesis_fp16.settings import load_settings
from infrastructure.trajectories.record_source import read_definition

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-rollback.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADD = re.compile(r"^\$ genesis-fp16 (agents add .+)$", re.MULTILINE)


def test_the_files_of_the_tutorial_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    [settings] = [block for _, block in blocks if block.startswith("ENABLE_FP16_TRAINING=")]
    [record] = [block for language, block in blocks if language == "python"]
    [training] = [block for language, block in blocks if language == "toml"]
    [added] = ADD.findall(text)

    (tmp_path / ".env").write_text(f"{settings}FP16_GROWTH_INTERVAL=1\n")
    in_force = load_settings()
    assert (in_force.cpu_half, in_force.growth_interval) == (True, 1)
    assert not in_force.for_agent("se-darwin").enabled

    exec(compile(record, "record.py", "exec"), {"__name__": "__main__"})
    result = CliRunner().invoke(app, added.split())
    assert (result.exit_code, "records        960" in result.output) == (0, True)
    definition = tmp_path / ".genesis" / "agents.d" / "room.toml"
    proposed = definition.read_text()
    moved = 'watts = { type = "box" }\n'
    assert (moved in proposed, moved in training) == (True, True)
    definition.write_text(f"{proposed.replace(moved, '')}\n{training}")
    room = read_definition(definition)
    assert (list(room.spec.action), list(room.spec.targets)) == (["watts"], ["later"])
    assert room.training.steps == 1_000_000
