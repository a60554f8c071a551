"""The script that trains a world model by the library, under the operator's settings."""

from __future__ import annotations

import random
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import ReplayBuffer
from infrastructure.world_model import WorldModel

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_world_model.py"
AGENT = """
from infrastructure.world_model import TEXT_SPEC
from infrastructure.world_model_agent import WorldModelAgent

class Fixer(WorldModelAgent):
    name = "fixer"
    def spec(self):
        return TEXT_SPEC
    def collect(self, context):
        raise AssertionError("the script collects nothing")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Call the script in an empty folder where the agent ``fixer`` is installed."""
    (tmp_path / "library_fixer.py").write_text(AGENT)
    metadata = tmp_path / "library_fixer-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: library-fixer\nVersion: 1\n")
    points = "[genesis.agents]\nfixer = library_fixer:Fixer\n"
    (metadata / "entry_points.txt").write_text(points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for name in ("GENESIS_ENV_FILE", "GENESIS_HOME", "ENABLE_FP16_TRAINING"):
        monkeypatch.delenv(name, raising=False)

    def call(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
        runpy.run_path(str(SCRIPT), run_name="__main__")

    return call


def record(home: Path) -> None:
    generator = random.Random(0)
    buffer = ReplayBuffer(home / "agents" / "fixer" / "replay")
    for number in range(400):
        good = generator.random() < 0.5
        buffer.append(
            Transition(
                group=f"task-{number // 4}",
                observation={"state": f"file {number} has a bug"},
                action={"action": "fix the bug" if good else "add a feature"},
                next_observation={"success": good, "improvement": 0.5 if good else -0.1},
            )
        )
    buffer.close()


@pytest.mark.process
def test_it_trains_saves_and_prints_the_statistics_of_the_trainer(
    script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / ".genesis")
    Path(".env").write_text("GENESIS_DEVICE=cpu\nGENESIS_CPU_HALF=true\nFP16_LOSS_SCALE=2e12\n")
    script("fixer", "--epochs", "4", "--save", str(tmp_path / "model"))
    printed = capsys.readouterr().out
    assert "precision_effective: fp16" in printed
    overflows = re.findall(r"epoch \d: loss .*, (\d+) overflows", printed)
    assert len(overflows) == 4
    assert f"overflow_steps: {sum(map(int, overflows))}\n" in printed
    assert int(overflows[0]) > 5
    assert "nll_skill: " in printed
    assert WorldModel.load(tmp_path / "model").metrics


@pytest.mark.process
def test_the_flag_means_fp32(script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(tmp_path / ".genesis")
    Path(".env").write_text(
        "GENESIS_DEVICE=cpu\nGENESIS_CPU_HALF=true\nENABLE_FP16_TRAINING=false\n"
    )
    script("fixer", "--epochs", "1")
    printed = capsys.readouterr().out
    assert "precision_effective: fp32\nprecision_reason: flag" in printed
    assert "fp16_steps: 0" in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fixer"], "run fixer"),
        (["nobody"], "'nobody' is installed; there are fixer"),
    ],
)
def test_what_is_missing_is_named(script, arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as caught:
        script(*arguments)
    assert message in str(caught.value)
