"""A PPO batch repeats bit for bit, and neither its ratio nor its KL is trivial."""

import pytest
import torch

from infrastructure.events import Role
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.losses.advantages import final_rewards, generalized_advantages, whitened
from infrastructure.policy.losses.ppo import value_loss
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.experiments.policy import OLD_LOG_PROBS, RETURNS
from tests.infrastructure.precision_lab.small_experiment import small_experiment

pytestmark = pytest.mark.process  # trains for seconds


def test_a_repetition_is_equal_bit_for_bit():
    experiment = small_experiment()
    first, second = experiment.run(in_fp32), experiment.run(in_fp32)
    assert first.quantities.keys() == second.quantities.keys()
    assert all(torch.equal(v, second.quantities[n]) for n, v in first.quantities.items())


def test_ratio_and_kl_are_not_trivial():
    outcome = small_experiment().run(in_fp32)
    mask_BS = outcome.mask_BS
    assert mask_BS.shape == (4, 11)  # of 10 and 11 columns
    ratio, kl = outcome.quantities["ratio"][mask_BS], outcome.quantities["kl"][mask_BS]
    assert (ratio != 1).all()
    assert (kl > 0).all()
    assert all(
        not v[~mask_BS].any() for n, v in outcome.quantities.items() if v.shape == mask_BS.shape
    )


def test_quantities_are_those_that_the_library_computes():
    experiment = small_experiment()
    outcome = experiment.run(in_fp32).quantities
    tensors = experiment.batches[0]
    batch, rows = TokenBatch.from_tensors(tensors), slice(0, 2)
    mask_BS = batch.response_mask_BS
    models = experiment.models
    with torch.no_grad():
        for role, name in (
            (Role.POLICY, "log_probs"),
            (Role.REFERENCE, "reference_log_probs"),
            (Role.ROLLOUT, "rollout_log_probs"),
        ):
            expected_BS = token_log_probs(models[role], batch, Sampling())
            torch.testing.assert_close(outcome[name][rows, :10], expected_BS)
        assert torch.equal(outcome["old_log_probs"][rows, :10], tensors[OLD_LOG_PROBS])
        log_ratio_BS = outcome["log_probs"] - outcome["reference_log_probs"]
        assert torch.equal(outcome["log_ratio"], log_ratio_BS)
        rewards_B = models[Role.REWARD](**batch.model_inputs())
        torch.testing.assert_close(outcome["rewards"][rows], rewards_B)
        rewards_BS = final_rewards(rewards_B, mask_BS)
        rewards_BS = rewards_BS - 0.05 * outcome["kl"][rows, :10]
        values_BS = outcome["values"][rows, :10]
        found_BS, _ = generalized_advantages(rewards_BS, values_BS, mask_BS)
        advantages_BS = whitened(found_BS, mask_BS)
        torch.testing.assert_close(outcome["advantages"][rows, :10], advantages_BS)
        ratio_BS = outcome["ratio"][rows, :10]
        surrogate_BS = torch.minimum(
            ratio_BS * advantages_BS, ratio_BS.clamp(0.8, 1.2) * advantages_BS
        )
        loss = -surrogate_BS[mask_BS].mean()
        loss += 0.5 * value_loss(values_BS, values_BS, tensors[RETURNS], mask_BS, clip=None).loss
    torch.testing.assert_close(outcome["loss"][0], loss)


def test_the_gradient_is_that_of_the_mean_loss():
    experiment = small_experiment()
    gradients = experiment.run(in_fp32).gradients()
    parameter = experiment.models[Role.POLICY].lm_head.weight
    step = torch.zeros_like(parameter)
    step[4] = 1e-3
    losses = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter += sign * step
        losses.append(experiment.run(in_fp32).quantities["loss"].double().mean())
        with torch.no_grad():
            parameter -= sign * step
    slope = (gradients["policy.lm_head.weight"] * step).sum()
    torch.testing.assert_close(slope.double(), (losses[0] - losses[1]) / 2, rtol=0.02, atol=1e-7)
    assert gradients["value.output.weight"].abs().sum() > 0
    assert not any(each.startswith(("reward", "reference")) for each in gradients)
