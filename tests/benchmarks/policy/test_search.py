from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from benchmarks.policy import learning
from benchmarks.policy.__main__ import main
from benchmarks.policy.search import CONDITIONS

# Last rewards of three seeds; "rate-2" is where BF16 loses.
KEPT = {
    "default-fp32": (0.90, 0.92, 0.94),
    "default-bf16": (0.91, 0.90, 0.95),
    "rate-2-fp32": (0.80, 0.90, 0.85),
    "rate-2-bf16": (0.60, 0.71, 0.64),
    "rate-2-fp16": (0.81, 0.90, 0.85),
}


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Finished trainings, so that the command trains nothing."""
    for name, rewards in KEPT.items():
        settings = CONDITIONS[name.rpartition("-")[0]].settings(rounds=150)
        for seed, reward in enumerate(rewards, start=1):
            points = [
                {"round": 175, "reward": 0.5, "cpu_seconds": 10.0},
                {"round": 200, "reward": reward, "cpu_seconds": 12.0},
            ]
            curve = {
                "settings": settings.model_dump(mode="json"),
                "complete": True,
                "points": points,
                "warm_up_rounds": 30,
                "warm_reward": 0.25,
                "k3": [[0, 9.0], [50, 1e-4], [75, 3e-4], [100, 2e-4]],
            }
            folder = tmp_path / "search" / f"{name}-{seed}"
            folder.mkdir(parents=True)
            (folder / "curve.json").write_text(json.dumps(curve))
    monkeypatch.setattr(learning, "train", None)
    return tmp_path


def test_fp16_is_trained_only_where_bf16_loses_beyond_chance(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["search", "--condition", "default", "rate-2", "--output", str(kept)]
    assert main(command) == 0
    with (kept / "search.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [f"{row['condition']}-{row['precision']}" for row in rows] == [*KEPT]
    worse = rows[3]
    assert worse["minus FP32"].startswith("-0.200 [-0.2")
    assert worse["at the end"].startswith("0.650 [")
    assert (worse["after warm-up"], worse["rounds"]) == ("0.250 [0.250, 0.250]", "200")
    assert [row["k3"] for row in rows] == ["", "2.0e-04", "", "2.0e-04", "2.0e-04"]
    assert "rate-2-bf16-2: 0.250 after 30 rounds" in capsys.readouterr().out


def test_each_condition_raises_something() -> None:
    default = CONDITIONS["default"]
    assert default.settings(300).model_dump() == {
        **learning.PolicySettings(task="sorting").model_dump(),
        "learning_rate": default.task.learning_rate,
    }
    settings = {str((each.task, each.settings(150))) for each in CONDITIONS.values()}
    assert len(settings) == len(CONDITIONS)
    assert all(0 < each.task.longest_answer <= 14 for each in CONDITIONS.values())
