"""Every loss with every correction on inputs that break careless arithmetic."""

import math
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.policy.corrections import CORRECTIONS, Corrected
from infrastructure.policy.losses import (
    Clip,
    LossInputs,
    dr_grpo_loss,
    flowrl_loss,
    grpo_loss,
    gspo_loss,
    kl_loss,
    ppo_loss,
)
from infrastructure.policy.losses.flowrl import FLOWRL_CISPO, FLOWRL_ORIGINAL
from infrastructure.policy.losses.kl import KLEstimator

LOSSES = {
    "grpo": grpo_loss,
    "dual clip": partial(grpo_loss, clip=Clip(dual=3.0)),
    "dr grpo": partial(dr_grpo_loss, max_length=3),
    "gspo": gspo_loss,
    "ppo": ppo_loss,
    "k2": partial(kl_loss, estimator=KLEstimator.K2),
    "k3": partial(kl_loss, estimator=KLEstimator.K3),
    "flowrl": partial(flowrl_loss, log_partition_B=None, options=FLOWRL_CISPO),
    "flowrl original": partial(flowrl_loss, log_partition_B=None, options=FLOWRL_ORIGINAL),
}
MASKS = {
    "all": [[True, True, True]] * 2,
    "one empty row": [[True, True, True], [False] * 3],
    "one token": [[False, True, False], [False] * 3],
    "nothing": [[False] * 3] * 2,
}
# Log-probabilities of the trained policy and of all others, which are 0 to -60.
LOG_PROBS = {
    "risen": (-5.0, -55.0),
    "fallen": (-55.0, -5.0),
    "impossible before": (-5.0, -1000.0),
}


def inputs_of(kind, mask, correction, dtype):
    own, other = LOG_PROBS[kind]
    mask_BS = torch.tensor(MASKS[mask])
    log_probs_BS = torch.full((2, 3), own, dtype=dtype)
    log_probs_BS[0, 1] -= 2.0
    log_probs_BS = log_probs_BS.masked_fill(~mask_BS, math.nan)
    other_BS = torch.full((2, 3), other, dtype=dtype).masked_fill(~mask_BS, -math.inf)
    return LossInputs(
        log_probs_BS=log_probs_BS.requires_grad_(),
        old_log_probs_BS=other_BS,
        advantages=torch.tensor([1.0, -1.0], dtype=dtype),
        mask_BS=mask_BS,
        reference_log_probs_BS=other_BS,
        correction=CORRECTIONS[correction](log_probs_BS, other_BS, mask_BS),
    )


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kind", LOG_PROBS)
def test_loss_and_gradient_are_finite(loss_name, mask, kind):
    for correction in CORRECTIONS:
        for dtype in (torch.float32, torch.float64):
            inputs = inputs_of(kind, mask, correction, dtype)
            loss, stats = LOSSES[loss_name](inputs)
            (gradient_BS,) = torch.autograd.grad(loss, inputs.log_probs_BS)
            assert loss.dtype == dtype
            assert loss.isfinite(), correction
            assert gradient_BS.isfinite().all(), correction
            assert (gradient_BS[~inputs.mask_BS] == 0).all()
            assert all(value.isfinite() for value in stats.values())
            assert not any(value.requires_grad for value in stats.values())


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_padding_changes_nothing(loss_name, correction):
    """Two columns on the left, one on the right and a row, all of NaN."""
    mask_BS = torch.tensor([[True, True, False, True], [True, False, False, False]])
    generator = torch.Generator().manual_seed(3)
    noise = torch.randn(2, 2, 4, dtype=torch.float64, generator=generator)
    log_probs_BS, rollout_BS = noise / 30 - 2.0
    advantages_B = torch.tensor([1.5, -0.5], dtype=torch.float64)

    def loss_and_gradient(log_probs_BS, rollout_BS, advantages_B, mask_BS):
        log_probs_BS = log_probs_BS.detach().requires_grad_()
        inputs = LossInputs(
            log_probs_BS=log_probs_BS,
            old_log_probs_BS=log_probs_BS.detach() + 0.01,
            advantages=advantages_B,
            mask_BS=mask_BS,
            reference_log_probs_BS=rollout_BS,
            correction=CORRECTIONS[correction](log_probs_BS, rollout_BS, mask_BS),
        )
        loss = LOSSES[loss_name](inputs).loss
        return loss, torch.autograd.grad(loss, log_probs_BS)[0]

    def padded(values_BS, value):
        return torch.nn.functional.pad(values_BS, (2, 1, 0, 1), value=value)

    loss, gradient_BS = loss_and_gradient(log_probs_BS, rollout_BS, advantages_B, mask_BS)
    padded_loss, padded_gradient_BS = loss_and_gradient(
        padded(log_probs_BS, math.nan),
        padded(rollout_BS, math.nan),
        torch.nn.functional.pad(advantages_B, (0, 1), value=math.nan),
        padded(mask_BS, False),
    )
    assert torch.allclose(loss, padded_loss)
    assert torch.allclose(padded(gradient_BS, 0.0), padded_gradient_BS)


@pytest.mark.parametrize("loss_name", LOSSES)
def test_nan_at_a_valid_token_makes_the_loss_nan(loss_name):
    """The trainer counts such a loss and skips the step; a finite one would hide it."""
    log_probs_BS = torch.tensor([[math.nan, -1.0]], requires_grad=True)
    other_BS = torch.full((1, 2), -1.0)
    inputs = LossInputs(
        log_probs_BS=log_probs_BS,
        old_log_probs_BS=other_BS,
        advantages=torch.ones(1),
        mask_BS=torch.ones(1, 2, dtype=torch.bool),
        reference_log_probs_BS=other_BS,
    )
    assert LOSSES[loss_name](inputs).loss.isnan()


@pytest.mark.parametrize("loss_name", LOSSES)
def test_gradients_flow_into_the_trained_policy_only(loss_name):
    """Old policy, reference, advantages and weights may come from a graph: they are targets."""
    log_probs_BS, old_BS, reference_BS, weights_BS = (
        torch.full((2, 3), value, requires_grad=True) for value in (-1.1, -1.0, -2.0, 0.5)
    )
    advantages_BS = torch.tensor([[1.0] * 3, [-1.0] * 3], requires_grad=True)
    mask_BS = torch.ones(2, 3, dtype=torch.bool)
    inputs = LossInputs(
        log_probs_BS=log_probs_BS * 1,
        old_log_probs_BS=old_BS * 1,
        advantages=advantages_BS * 1,
        mask_BS=mask_BS,
        reference_log_probs_BS=reference_BS * 1,
        correction=Corrected(weights_BS=weights_BS * 1, kept_BS=mask_BS),
    )
    LOSSES[loss_name](inputs).loss.backward()
    assert log_probs_BS.grad.abs().sum() > 0
    assert [each.grad for each in (old_BS, reference_BS, weights_BS, advantages_BS)] == [None] * 4


@pytest.mark.parametrize("loss_name", LOSSES)
def test_losses_do_not_wait_for_the_device(loss_name):
    inputs = inputs_of("risen", "one empty row", "icepop", torch.float32)
    with NoRead():
        LOSSES[loss_name](inputs).loss.backward()


def test_corrections_do_not_wait_for_the_device():
    inputs = inputs_of("risen", "one empty row", "none", torch.float32)
    for correction in CORRECTIONS.values():
        with NoRead():
            correction(inputs.log_probs_BS, inputs.old_log_probs_BS, inputs.mask_BS)


class NoRead(TorchDispatchMode):
    """Fails at an operation that makes the host wait for the device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        for name in ("_local_scalar_dense", "nonzero", "equal", "masked_select", "is_nonzero"):
            assert not str(function).startswith(f"aten.{name}."), f"{function} reads the device"
        return function(*args, **(kwargs or {}))
