"""``lab freeze``, and what is repeated in a worker afterwards."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.cli.lab.errors import LabFailedError
from genesis_fp16.daemon.agent_task import AgentTaskError
from tests.genesis_fp16.line_plugin import FACTORY, line_plugin


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replay", "nowhere", "--preset", "bf16_pure"], "nowhere: holds no"),
        (["freeze", "new", "--agent", "a", "--base-model", "small"], "exclude each other"),
        (["freeze", "full", "--base-model", "small"], "full: "),
        (["freeze", "new", "--base-model", "nowhere"], "nowhere is not a folder"),
    ],
)
def test_a_mistake_is_one_message(ask, arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    result = ask("lab", *arguments)
    assert isinstance(result.exception, LabFailedError)
    assert message in str(result.exception)


@pytest.mark.process
@pytest.mark.usefixtures("forked")
def test_the_world_model_of_an_agent_is_frozen_and_repeated_in_a_worker(
    ask: Callable[..., Result], install_plugin: Callable[..., None], folder: Path
) -> None:
    (folder / ".env").write_text("GENESIS_DEVICE=cpu\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    install_plugin("line", line_plugin(), factory=FACTORY)
    frozen = ask("lab", "freeze", "frozen", "--agent", "line", "--batches", "2", "--steps", "3")
    assert frozen.exit_code == 0, frozen.exception
    assert frozen.stdout == "frozen in frozen\n"
    assert {"starting a worker with the agent line", "0 of 3 steps in FP32"} <= {
        *frozen.stderr.splitlines()
    }
    manifest = json.loads((folder / "frozen" / "manifest.json").read_text())
    assert manifest["kind"] == "world-model"
    assert manifest["source"]["agent"] == "line"
    (data,) = manifest["agent"]["transitions"]
    assert (folder / "frozen" / "data" / data).read_bytes().count(b"\n") == 6

    replayed = ask("lab", "replay", "frozen", "--output", "out", "--preset", "flowrl_bf16")
    assert replayed.exit_code == 0, replayed.exception
    assert replayed.stdout.splitlines()[1].split()[0] == "flowrl_bf16"
    assert "0 of 1 presets repeated" in replayed.stderr.splitlines()
    result = json.loads((folder / "out" / "replay" / "flowrl_bf16.json").read_text())
    assert 1e-4 < result["gradients"]["relative_error"] < 0.5
    assert result["precision"] == {"world_model": "fp32/bf16/fp32"}
    assert len(result["loss"]) == 2

    searched = ask("lab", "bisect", "frozen", "--output", "out")
    assert searched.exit_code == 0, searched.exception
    assert "no culprit" in searched.stdout
    found = json.loads((folder / "out" / "bisect.json").read_text())
    assert (found["culprits"], found["preset"]) == ([], "fp16")

    (folder / "site" / "line_plugin.py").write_text(line_plugin(width=16))
    changed = ask("lab", "replay", "frozen", "--output", "out", "--preset", "flowrl_bf16")
    assert isinstance(changed.exception, AgentTaskError)
    assert "the agent builds now" in str(changed.exception)
