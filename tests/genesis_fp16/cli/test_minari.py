"""``genesis-fp16 minari``."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.cli.minari import DataSetError
from genesis_fp16.settings import load_settings
from infrastructure.agent_contract import Transition
from infrastructure.trajectories import ReplayBuffer

pytest.importorskip("minari", reason="installed with the extra dev")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")

Ask = Callable[..., Result]


@pytest.fixture
def recorded(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent walker has recorded 60 episodes."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    with closing(ReplayBuffer(load_settings().home / "agents" / "walker" / "replay")) as buffer:
        for number in range(600):
            buffer.append(
                Transition(
                    group=f"g{number // 10}",
                    observation={"observation.x": number * 0.5},
                    action={"action.push": number * 7 % 3},
                    reward=float(number % 4),
                    next_observation={"observation.x": (number + 1) * 0.5},
                    terminated=number % 10 == 9,
                )
            )


def test_what_an_agent_recorded_becomes_records_of_an_agent_without_code(
    ask: Ask, recorded: None, tmp_path: Path
) -> None:
    assert "60 episodes" in ask("minari", "export", "walker", "mine/walker-v0").stdout
    records = tmp_path / "records.jsonl"
    output = ask("minari", "import", "mine/walker-v0", str(records)).stdout
    assert "600 transitions" in output
    assert f"agents add NAME --from {records}" in output
    assert len(records.read_text().splitlines()) == 600
    proposed = ask("agents", "add", "imported", "--from", str(records), "--dry-run").stdout
    assert 'format = "transitions"' in proposed
    assert "observation.x" in proposed


def test_errors_say_what_to_do(ask: Ask, recorded: None, tmp_path: Path) -> None:
    nobody = ask("minari", "export", "nobody", "mine/x-v0").exception
    assert isinstance(nobody, DataSetError)
    assert nobody.exit_code == os.EX_DATAERR
    assert "nobody has recorded nothing" in str(nobody)
    unknown = ask("minari", "import", "mine/unknown-v0", str(tmp_path / "x.jsonl")).exception
    assert isinstance(unknown, DataSetError)
    assert "minari download" in str(unknown)
    assert not (tmp_path / "x.jsonl").exists()
