"""Presets by the real roles: FP32 masters where a preset has them, half weights in a pure one."""

import pytest
import torch

from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS
from infrastructure.policy import TokenBatch
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.replay.preset_kernels import PresetKernels
from infrastructure.precision_lab.trained_forward import TrainedForward
from infrastructure.training.precision.roles import RoleForward
from tests.infrastructure.precision_lab.small_experiment import small_experiment

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")


def test_the_fp32_preset_gives_what_the_models_give():
    experiment = small_experiment()
    expected = experiment.run(in_fp32).quantities
    found = experiment.run_with(PresetKernels(experiment.models, PRESETS["fp32_baseline"]))
    for name, value in found.quantities.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "half"), [("bf16_pure", torch.bfloat16)])
def test_a_pure_preset_has_half_weights_and_half_results_everywhere(name, half):
    experiment = small_experiment()
    kernels = PresetKernels(experiment.models, PRESETS[name])
    batch = TokenBatch.from_tensors(experiment.batches[0])
    for role in (Role.POLICY, Role.REFERENCE, Role.ROLLOUT):
        model = kernels.model(role)
        assert isinstance(model, TrainedForward if role is Role.POLICY else RoleForward)
        weights = {n: p.dtype for n, p in model.module.named_parameters()}
        assert set(weights.values()) == {half}
        assert model(**batch.model_inputs()).logits.dtype == half
    policy = kernels.model(Role.POLICY)
    output = policy(**batch.model_inputs(), output_hidden_states=True)
    output.logits.sum().backward()
    assert policy.module.lm_head.weight.grad.dtype == half
    assert kernels.model(Role.VALUE)(output.hidden_states[-1]).dtype == half
    seen = []
    kernels.compute(
        Role.KL, lambda *each: seen.extend(each) or each[0], torch.ones(1), torch.ones(1)
    )
    assert [each.dtype for each in seen] == [half, half]


def test_one_role_in_fp32_takes_half_inputs():
    experiment = small_experiment()
    outcome = experiment.run_with(PresetKernels(experiment.models, PRESETS["mixed_recommended"]))
    assert all(each.isfinite().all() for each in outcome.quantities.values())
    kernels = PresetKernels(experiment.models, PRESETS["mixed_recommended"])
    value = kernels.model(Role.VALUE)(torch.ones(1, 3, 16, dtype=torch.bfloat16))
    assert value.dtype == torch.float32


def test_masters_stay_fp32_and_the_frozen_models_do_not_change():
    experiment = small_experiment()
    before = {r: [p.clone() for p in m.parameters()] for r, m in experiment.models.items()}
    kernels = PresetKernels(experiment.models, PRESETS["flowrl_bf16"])
    assert {p.dtype for p in kernels.model(Role.POLICY).module.parameters()} == {torch.float32}
    outcome = experiment.run_with(kernels)
    exact = experiment.run(in_fp32)
    difference = (outcome.quantities["log_probs"] - exact.quantities["log_probs"]).abs().max()
    assert 1e-4 < difference < 0.2
    for role, model in experiment.models.items():
        assert all(map(torch.equal, before[role], model.parameters()))
