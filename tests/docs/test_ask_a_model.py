"""The Python and the commands of the page about asking a model, run as a reader would."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from genesis_client import Agent

from genesis_fp16.models import NoModelError
from tests.clients.python.predictor_process import PredictorProcess

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ask-a-model.md"
BLOCK = re.compile(r"^```(python|bash)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def onnx_block() -> str:
    """The page's Python for onnxruntime."""
    return [text for kind, text in BLOCK.findall(PAGE.read_text()) if kind == "python"][2]


def run_page(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Agent, list[dict[str, Any]]]:
    """Run the page in *folder*; the agent of its Python, and the answers to its commands."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    for name in ("GENESIS_HOME", "GENESIS_PREDICT_SOCKET", "GENESIS_PREDICT_URL"):
        monkeypatch.delenv(name, raising=False)
    blocks = BLOCK.findall(PAGE.read_text())
    (client, in_process, _), (commands,) = (
        [text for kind, text in blocks if kind == wanted] for wanted in ("python", "bash")
    )
    names: dict[str, Any] = {}
    exec(compile(client, PAGE.name, "exec"), names)
    agent: Agent = names["agent"]
    assert agent.flush(20.0)
    with pytest.raises(NoModelError, match="support has no model to use"):
        exec(compile(in_process, PAGE.name, "exec"), names)
    commands = commands.replace("\nask ", "\necho; ask ")
    done = subprocess.run(
        ["bash", "-euc", commands], capture_output=True, text=True, check=False, cwd=folder
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return agent, [json.loads(line) for line in done.stdout.splitlines() if line]


@pytest.mark.process
def test_the_page_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / ".genesis"
    home.mkdir()
    predictor = PredictorProcess(home)
    predictor.start()
    try:
        agent, (ranking, decision, outcome, steps) = run_page(tmp_path, monkeypatch)
        agent.close()
    finally:
        predictor.kill()
    assert agent.status.refused == 0
    assert len(predictor.journal("outcome")) == 2
    assert (ranking["order"], decision["chosen"]) == ([0, 1], 0)
    assert outcome == {"id": "4711-1", "state": "recorded", "warnings": []}
    assert steps == {"recorded": 1, "repeated": 0, "warnings": []}


def test_the_page_states_the_defaults() -> None:
    text = PAGE.read_text()
    assert Agent.__init__.__kwdefaults__["deadline"] == 0.05
    assert "within 50 ms (`deadline`)" in text
    assert Agent.__init__.__kwdefaults__["spool_bytes"] == 16 << 20
    assert "16 MiB of reports wait (`spool_bytes`)" in text
