import copy
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest
import torch

from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS, RolePrecisions
from infrastructure.precision_lab.failures import FailureKind, TrainingFailureError
from infrastructure.precision_lab.ppo.cell import CELL_ROLES, PPOCell
from infrastructure.precision_lab.ppo.initial_weights import CellModels, prepare
from infrastructure.precision_lab.ppo.settings import CellSettings

pytestmark = pytest.mark.process  # trains for seconds

TINY = CellSettings(
    width=8,
    layers=1,
    warm_up_steps=6,
    reward_model_steps=4,
    preparation_batch=8,
    completions=8,
    updates=6,
    learning_rate=3e-3,
)


@pytest.fixture(scope="module")
def initial() -> CellModels:
    return prepare(TINY, 0)


def _cell(
    initial: CellModels, preset: str | RolePrecisions, settings: CellSettings = TINY, seed: int = 0
) -> PPOCell:
    precisions = PRESETS[preset] if isinstance(preset, str) else preset
    return PPOCell(settings, precisions, copy.deepcopy(initial), seed)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_declared_type_is_read_and_used(initial: CellModels, preset: str) -> None:
    cell = _cell(initial, preset)
    steps = list(cell.steps())
    assert cell.effective_precision == {role: str(PRESETS[preset][role]) for role in CELL_ROLES}
    assert len(steps) == cell.updates == TINY.updates
    half_weights = PRESETS[preset][Role.POLICY].store != "fp32"
    assert cell.has_masters is not half_weights
    scaled = bool(PRESETS[preset].scaled_roles & {Role.POLICY, Role.VALUE})
    assert (steps[0]["loss_scale"] > 1) is scaled


def test_a_cell_is_repeated_bit_for_bit(initial: CellModels) -> None:
    def steps() -> list[dict[str, Any]]:
        return [{**each, "seconds": 0} for each in _cell(initial, "bf16_pure").steps()]

    assert steps() == steps()


def test_one_round_serves_several_updates_with_old_log_probs_computed_once(
    initial: CellModels,
) -> None:
    steps = list(_cell(initial, "fp32_baseline").steps())
    assert [each["round"] for each in steps] == [0, 0, 0, 0, 1, 1]
    assert [each["ratio_one_frac"] > 0.99 for each in steps[:4]] == [True, False, False, False]
    assert steps[0]["value_stagnation_rate"] is None  # no update came before
    assert steps[2]["value_stagnation_rate"] < 1


def test_ratios_meet_whitened_advantages(initial: CellModels) -> None:
    whole_rounds = replace(TINY, minibatches=1, updates=2)
    first, second = _cell(initial, "fp32_baseline", whole_rounds).steps()
    assert first["policy_loss"] == pytest.approx(0, abs=1e-6)  # ratios of 1, advantages of mean 0
    assert second["policy_loss"] < -1e-3  # the first update has moved the ratios


def test_the_value_loss_does_not_reach_the_policy(initial: CellModels) -> None:
    small, large = (
        next(iter(_cell(initial, "fp32_baseline", replace(TINY, value_coefficient=c)).steps()))
        for c in (0.1, 100.0)
    )
    assert large["value_grad_norm"] == pytest.approx(1000 * small["value_grad_norm"], rel=1e-3)
    assert large["policy_grad_norm"] == pytest.approx(small["policy_grad_norm"], rel=1e-6)


def test_each_round_is_generated_with_the_weights_of_its_first_update(initial: CellModels) -> None:
    steps = list(_cell(initial, "fp32_baseline").steps())
    assert steps[-1]["round"] == 1
    assert steps[-1]["log_prob_abs_err_max"] == 0
    assert abs(steps[-1]["mismatch_k3"]) < 1e-9


def test_the_reference_is_not_the_policy(initial: CellModels) -> None:
    first = next(iter(_cell(initial, "fp32_baseline").steps()))
    assert first["kl_penalty_mean"] > 0
    assert first["kl_penalty_mean"] == pytest.approx(first["exact_kl_penalty_mean"], rel=0.5)


def test_the_reference_and_the_reward_model_stay_as_they_are(initial: CellModels) -> None:
    models = copy.deepcopy(initial)
    list(PPOCell(TINY, PRESETS["fp32_baseline"], models, 0).steps())
    for name in ("reference", "reward"):
        before, after = initial.named[name].state_dict(), models.named[name].state_dict()
        assert all(torch.equal(before[each], after[each]) for each in before)
    assert models.sha256 != initial.sha256


def test_presets_differ_from_the_first_step_on(initial: CellModels) -> None:
    first = {
        name: next(iter(_cell(initial, name).steps()))
        for name in ("fp32_baseline", "bf16_pure", "bf16_fp32_reward", "bf16_fp32_kl")
    }
    assert first["fp32_baseline"]["log_prob_abs_err_max"] == 0
    assert first["bf16_pure"]["log_prob_abs_err_mean"] > 1e-4
    # One change each: of the role that the name says.
    assert (
        first["bf16_pure"]["reward_resolution_min"]
        > first["bf16_fp32_reward"]["reward_resolution_min"]
    )
    exact = first["bf16_fp32_kl"]["exact_kl_penalty_mean"]
    errors = [abs(first[name]["kl_penalty_mean"] - exact) for name in ("bf16_fp32_kl", "bf16_pure")]
    assert errors[0] < errors[1]


def test_the_task_reward_has_the_types_of_its_role(initial: CellModels) -> None:
    cell = _cell(initial, "bf16_pure", replace(TINY, task_reward=True, updates=1))
    step = next(iter(cell.steps()))
    assert cell.effective_precision[Role.REWARD] == "bf16/bf16/bf16"
    assert step["reward_mean"] == pytest.approx(step["task_reward_mean"], abs=2**-8)


def test_an_infinite_value_ends_the_cell_after_its_line(initial: CellModels) -> None:
    models = copy.deepcopy(initial)
    torch.nn.init.constant_(models.value.output.bias, 7e4)  # beyond FP16
    cell, steps = PPOCell(TINY, PRESETS["fp16_pure"], models, 0), []
    with pytest.raises(TrainingFailureError) as raised:
        steps.extend(cell.steps())
    assert raised.value.failure.kind is FailureKind.INF_VALUE_HEAD
    assert cell.skipped == cell.updates == 1


def test_fp32_learns_the_task_through_the_reward_model() -> None:
    settings = CellSettings(
        updates=24, completions=64, learning_rate=1e-3, reward_model_steps=200, preparation_batch=48
    )
    cell = PPOCell(settings, PRESETS["fp32_baseline"], prepare(settings, 11), 11)
    rewards = [each["task_reward_mean"] for each in cell.steps()][:: settings.epochs * 2]
    assert fmean(rewards[-2:]) > fmean(rewards[:2]) + 0.1


def test_a_cell_that_takes_too_long_has_failed(initial: CellModels) -> None:
    with pytest.raises(TrainingFailureError) as raised:
        list(_cell(initial, "fp32_baseline", replace(TINY, timeout_seconds=1e-6)).steps())
    assert raised.value.failure.kind is FailureKind.TIMEOUT
