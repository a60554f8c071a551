from __future__ import annotations

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from benchmarks.policy import learning
from benchmarks.policy.__main__ import main

pytestmark = pytest.mark.process  # trains for seconds


def keep(folder: Path, settings: PolicySettings, reward: float) -> None:
    """Write a finished curve that ends with *reward*."""
    folder.mkdir(parents=True)
    curve = learning.Curve([learning.Point(350, reward, 50.0)], 20, 0.25)
    content = {"settings": settings.model_dump(), "complete": True, **asdict(curve)}
    (folder / "curve.json").write_text(json.dumps(content))


def test_curves_are_kept_and_made_with_the_same_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    brackets = replace(TASKS["brackets"], warm_up_rounds=15)
    monkeypatch.setattr(learning, "TASKS", {"brackets": brackets})
    command = ["learn", "--task", "brackets", "--precision", "fp32", "--seed", "3"]
    command += ["--rounds", "1", "--output", str(tmp_path)]
    assert main(command) == 0
    first = capsys.readouterr().out
    assert "brackets-fp32-none-3: 0." in first
    assert "after 25, " in first
    kept = (tmp_path / "learning" / "brackets-fp32-none-3" / "curve.json").read_text()
    assert (tmp_path / "learning.csv").read_text().startswith("task,precision,correction,loss,")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(learning, "train", None)  # nothing is trained again
    assert main(command) == 0
    assert capsys.readouterr().out == first
    assert (tmp_path / "learning" / "brackets-fp32-none-3" / "curve.json").read_text() == kept
    with pytest.raises(SystemExit, match="other options"):
        main([*command, "--learning-rate", "0.01"])


def test_losses_have_curves_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning, "train", None)  # what is kept is not trained again
    for name, loss, reward in (("1", "dr_grpo", 0.9), ("ppo-1", "ppo", 0.7)):
        settings = PolicySettings(task="brackets", loss=loss)
        keep(tmp_path / "learning" / f"brackets-fp32-none-{name}", settings, reward)
    command = ["learn", "--task", "brackets", "--precision", "fp32", "--seed", "1"]
    command += ["--output", str(tmp_path)]
    assert main([*command, "--loss", "ppo"]) == 0
    assert not (tmp_path / "learning.png").exists(), "it shows the agent's own loss"
    assert main([*command, "--loss", "dr_grpo", "ppo"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[-2:]]
    assert [row[3:7] for row in rows] == [
        ["dr_grpo", "1", "0.250", "0.900"],
        ["ppo", "1", "0.250", "0.700"],
    ]


def test_a_correction_is_compared_with_fp32_of_the_same_seeds(tmp_path: Path) -> None:
    plain, corrected = (
        PolicySettings(task="brackets", correction=name) for name in ("none", "token-tis")
    )
    for seed, fp32, bf16 in ((1, 0.9, 0.7), (2, 0.8, 0.6)):
        keep(tmp_path / "learning" / f"brackets-fp32-none-{seed}", plain, fp32)
        keep(tmp_path / "learning" / f"brackets-bf16-token-tis-{seed}", corrected, bf16)
    command = ["learn", "--task", "brackets", "--precision", "fp32", "bf16", "--seed", "1", "2"]
    assert main([*command, "--correction", "token-tis", "--output", str(tmp_path)]) == 0
    with (tmp_path / "learning.csv").open() as file:
        baseline, compared = csv.DictReader(file)
    assert baseline["minus FP32"] == ""
    assert compared["minus FP32"].startswith("-0.200 [-0.2")
