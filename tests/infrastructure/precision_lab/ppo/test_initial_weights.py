from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infrastructure.events.role_precision import PRESETS
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo.cell import PPOCell
from infrastructure.precision_lab.ppo.initial_weights import load, prepare, save
from infrastructure.precision_lab.ppo.settings import CellSettings

pytestmark = pytest.mark.process  # trains for seconds

TINY = CellSettings(width=8, layers=1, warm_up_steps=3, reward_model_steps=2, preparation_batch=4)


def test_a_seed_decides_the_weights_and_a_file_restores_them(tmp_path: Path) -> None:
    models = prepare(TINY, 0)
    assert prepare(TINY, 0).sha256 == models.sha256 != prepare(TINY, 1).sha256
    path = tmp_path / "seed0.pt"
    assert save(path, models) == models.sha256 == load(path, TINY, 0).sha256


def test_the_reference_is_an_earlier_policy_and_no_copy() -> None:
    models = prepare(TINY, 0)
    policy, reference = models.policy.state_dict(), models.reference.state_dict()
    assert any(not torch.equal(policy[name], reference[name]) for name in policy)


def test_the_first_values_are_near_the_rewards() -> None:
    for tiny in (TINY, replace(TINY, task_reward=True)):
        first = next(PPOCell(tiny, PRESETS["fp32_baseline"], prepare(tiny, 0), 0).steps())
        # The best constant would have a squared error of the variance.
        assert 2 * first["value_loss"] < first["reward_std"] ** 2 + 0.01


def test_weights_of_other_settings_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "seed0.pt"
    save(path, prepare(TINY, 0))
    with pytest.raises(LabError, match=r"seed0.pt.*delete the file"):
        load(path, CellSettings(width=16, layers=1), 0)


def test_a_changed_weight_is_found(tmp_path: Path) -> None:
    path = tmp_path / "seed0.pt"
    save(path, prepare(TINY, 0))
    content = torch.load(path, weights_only=True)
    next(iter(content["states"]["value"].values())).view(-1)[0] += 1e-3
    torch.save(content, path)
    with pytest.raises(LabError, match="are damaged"):
        load(path, TINY, 0)


@settings(max_examples=20)
@given(content=st.binary(max_size=300))
def test_a_damaged_file_is_named(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("weights") / "seed0.pt"
    path.write_bytes(content)
    with pytest.raises(LabError, match=r"seed0\.pt"):
        load(path, TINY, 0)
