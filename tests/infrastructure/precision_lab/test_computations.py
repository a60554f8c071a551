"""The lab's arithmetic equals the library's in float32, and stays in the type it is given."""

import pytest
import torch

from infrastructure.policy import Sampling, TokenBatch, log_probs_of_logits
from infrastructure.policy.losses import advantages as library
from infrastructure.policy.losses.inputs import LossInputs
from infrastructure.policy.losses.ppo import ppo_loss, value_loss
from infrastructure.precision_lab import computations
from infrastructure.precision_lab.metrics.kl import kl_penalty

HALF = [torch.bfloat16, torch.float16]


@pytest.fixture
def batch():
    return TokenBatch.from_sequences([[3, 4], [5]], [[4, 5, 2], [3, 2]], pad_token=0)


@pytest.fixture
def tensors(batch):
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    shape = batch.response_mask_BS.shape
    return {
        "logits_BTV": draw(*batch.tokens_BT.shape, 7),
        "log_probs_BS": draw(*shape) / 10 - 1,
        "old_BS": draw(*shape) / 10 - 1,
        "values_BS": draw(*shape),
        "returns_BS": draw(*shape),
        "rewards_B": draw(shape[0]),
        "mask_BS": batch.response_mask_BS,
    }


def test_log_probs_are_those_of_the_library(batch, tensors):
    found = computations.log_probs_of(tensors["logits_BTV"], batch, 0.7)
    expected = log_probs_of_logits(tensors["logits_BTV"], batch, Sampling(temperature=0.7))
    assert torch.equal(found, expected)


def test_rewards_and_whitening_are_those_of_the_library(tensors):
    mask_BS, values_BS = tensors["mask_BS"], tensors["values_BS"]
    zeros_BS = torch.zeros_like(values_BS)
    rewards_BS = computations.shaped_rewards(tensors["rewards_B"], zeros_BS, mask_BS, 0.1)
    assert torch.equal(rewards_BS, library.final_rewards(tensors["rewards_B"], mask_BS))
    torch.testing.assert_close(
        computations.whitened(values_BS, mask_BS), library.whitened(values_BS, mask_BS)
    )


def test_losses_are_those_of_the_library(tensors):
    mask_BS, log_probs_BS = tensors["mask_BS"], tensors["log_probs_BS"].requires_grad_()
    inputs = LossInputs(
        log_probs_BS=log_probs_BS,
        old_log_probs_BS=tensors["old_BS"],
        advantages=tensors["values_BS"],
        mask_BS=mask_BS,
    )
    ratio_BS = computations.ratio_of(log_probs_BS, tensors["old_BS"], mask_BS)
    found = computations.clipped_surrogate(ratio_BS, tensors["values_BS"], mask_BS)
    expected = ppo_loss(inputs).loss
    torch.testing.assert_close(found, expected)
    gradients = (torch.autograd.grad(each, log_probs_BS)[0] for each in (found, expected))
    torch.testing.assert_close(*gradients)
    values_BS, returns_BS = tensors["values_BS"], tensors["returns_BS"]
    torch.testing.assert_close(
        computations.squared_error(values_BS, returns_BS, mask_BS),
        value_loss(values_BS, values_BS, returns_BS, mask_BS, clip=None).loss,
    )


def test_the_kl_penalty_is_charged_at_each_token(tensors):
    mask_BS = torch.tensor([[False, True, True]])
    kl_BS = torch.tensor([[9.0, 0.5, 0.25]])
    shaped_BS = computations.shaped_rewards(torch.tensor([2.0]), kl_BS, mask_BS, 0.5)
    assert shaped_BS.tolist() == [[0.0, -0.25, 2.0 - 0.125]]


@pytest.mark.parametrize("dtype", HALF)
def test_half_tensors_stay_half(batch, tensors, dtype):
    half = {name: t if name == "mask_BS" else t.to(dtype) for name, t in tensors.items()}
    mask_BS = half["mask_BS"]
    log_probs_BS = computations.log_probs_of(half["logits_BTV"], batch, 1.0)
    kl_BS = kl_penalty(log_probs_BS - half["old_BS"])
    shaped_BS = computations.shaped_rewards(half["rewards_B"], kl_BS, mask_BS, 0.1)
    found = library.gae(shaped_BS, half["values_BS"], mask_BS)
    white_BS = computations.whitened(found[0], mask_BS)
    ratio_BS = computations.ratio_of(log_probs_BS, half["old_BS"], mask_BS)
    results = [
        *(log_probs_BS, kl_BS, shaped_BS, *found, white_BS, ratio_BS),
        computations.clipped_surrogate(ratio_BS, white_BS, mask_BS),
        computations.squared_error(half["values_BS"], half["returns_BS"], mask_BS),
    ]
    assert {each.dtype for each in results} == {dtype}
    assert all(each.isfinite().all() for each in results)
