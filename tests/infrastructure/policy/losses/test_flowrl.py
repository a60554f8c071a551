import dataclasses
import math
from functools import partial

import pytest
import torch

from infrastructure.policy.losses import LossInputs, flowrl_loss
from infrastructure.policy.losses.flowrl import (
    FLOWRL_CISPO,
    FLOWRL_ORIGINAL,
    FLOWRL_PAPER,
    FlowRLOptions,
)
from infrastructure.policy.masked import TokenValueError

# Old and reference probabilities are 1/4, so log(π/π_ref) = log(ratio). beta = 2 keeps it readable.
RATIOS = [[2.0, 2.0, 9.0], [0.5, 1.0, 9.0]]
ADVANTAGES = [0.5, 0.25]
MASK = [[True, True, False], [True, True, False]]
REFERENCE = math.log(0.25)
LOG_PARTITION = [0.1, 0.2]
LOG2 = math.log(2)
# δ_0 = 0.1 + log 2 - 1, δ_1 = 0.2 - log(2) / 2 - 0.5; weights: exp(2 log 2) = 4 and 1/2.
RESIDUALS = (LOG2 - 0.9, -0.3 - LOG2 / 2)


def original(**changes):
    return dataclasses.replace(FLOWRL_ORIGINAL, beta=2.0, **changes)


@pytest.fixture
def inputs(make_inputs):
    return make_inputs(RATIOS, ADVANTAGES, MASK, reference=REFERENCE)


@pytest.fixture
def log_partition_B():
    return torch.tensor(LOG_PARTITION, dtype=torch.float64, requires_grad=True)


def test_original(inputs, log_partition_B, gradient_of):
    """L = (4 δ_0² + δ_1² / 2) / 2. Its gradient by log π_it is w_i 2 δ_i / (length B)."""
    loss, stats = flowrl_loss(inputs, log_partition_B, original())
    first, second = RESIDUALS
    assert loss.item() == pytest.approx((4 * first**2 + 0.5 * second**2) / 2)
    (by_partition_B,) = torch.autograd.grad(loss, log_partition_B, retain_graph=True)
    assert by_partition_B.tolist() == pytest.approx([4 * first, 0.5 * second])
    gradient = gradient_of(loss, inputs)
    assert gradient[0] == pytest.approx([2 * first, 2 * first, 0])
    assert gradient[1] == pytest.approx([0.25 * second, 0.25 * second, 0])
    assert stats["residual"].item() == pytest.approx((first + second) / 2)
    assert stats["weight"].item() == pytest.approx(2.25)


def test_the_weight_of_the_paper_is_clipped(inputs, log_partition_B):
    options = dataclasses.replace(FLOWRL_PAPER, beta=2.0)
    loss, _ = flowrl_loss(inputs, log_partition_B, options)
    assert loss.item() == pytest.approx((1.2 * RESIDUALS[0] ** 2 + 0.8 * RESIDUALS[1] ** 2) / 2)


def test_masked_variant_of_dev_fp16(make_inputs, log_partition_B, gradient_of):
    """Row 0, A > 0: 2 > 1.28 is dropped, 1.2 is used: δ = 0.1 + log 1.2 - 1, w = 1.2.

    Row 1, A < 0: 0.5 < 0.8 is dropped, 2 is used although it moved: δ = 0.2 + log 2 + 0.5,
    w = clamp(2) = 1.28.
    """
    inputs = make_inputs([[2.0, 1.2], [0.5, 2.0]], [0.5, -0.25], reference=REFERENCE)
    loss, stats = flowrl_loss(inputs, log_partition_B, FlowRLOptions(beta=2.0))
    first, second = math.log(1.2) - 0.9, LOG2 + 0.7
    assert loss.item() == pytest.approx((1.2 * first**2 + 1.28 * second**2) / 2)
    assert gradient_of(loss, inputs) == [
        [0, pytest.approx(1.2 * first)],
        [0, pytest.approx(1.28 * second)],
    ]
    assert stats["used_fraction"].item() == 0.5


def test_tokens_within_the_bounds_are_used(make_inputs):
    for ratio, advantage, used in (
        (1.27, 1.0, 1),
        (1.29, 1.0, 0),
        (1.29, -1.0, 1),
        (0.81, -1.0, 1),
        (0.79, -1.0, 0),
        (0.79, 1.0, 1),
        (9.0, 0.0, 1),
    ):
        inputs = make_inputs([[ratio]], [advantage], reference=REFERENCE)
        assert flowrl_loss(inputs, None).stats["used_fraction"] == used


def test_a_sequence_without_used_tokens_does_not_train_the_partition(make_inputs, log_partition_B):
    inputs = make_inputs([[2.0, 2.0], [1.0, 1.0]], [1.0, 1.0], reference=REFERENCE)
    loss, _ = flowrl_loss(inputs, log_partition_B, FlowRLOptions(beta=2.0))
    assert loss.item() == pytest.approx((0.2 - 2) ** 2 / 2)
    assert torch.autograd.grad(loss, log_partition_B)[0].tolist() == pytest.approx([0, -1.8])


def test_without_partition_and_without_reference(inputs):
    """Without log Z: δ_0 = log 2 - 1. Without the reference: <log π> = log 1/4 + log 2."""
    loss, _ = flowrl_loss(inputs, None, original())
    first, second = LOG2 - 1, -LOG2 / 2 - 0.5
    assert loss.item() == pytest.approx((4 * first**2 + 0.5 * second**2) / 2)
    loss, _ = flowrl_loss(inputs, None, original(reference=False))
    first, second = first - 2 * LOG2, second - 2 * LOG2
    assert loss.item() == pytest.approx((4 * first**2 + 0.5 * second**2) / 2)


def test_a_correction_of_the_mismatch_drops_tokens_and_weights_sequences(
    make_inputs, log_partition_B, gradient_of
):
    """Row 0 keeps token 0 with the weight 0.6: c = 0.3, w = 2, δ = 0.1 + log 2 - 1."""
    inputs = make_inputs(
        RATIOS, ADVANTAGES, MASK, reference=REFERENCE, weights=[[0.6, 0, 0], [0, 0, 0]]
    )
    loss, _ = flowrl_loss(inputs, log_partition_B, original())
    assert loss.item() == pytest.approx(0.3 * 2 * RESIDUALS[0] ** 2 / 2)
    gradient = gradient_of(loss, inputs)
    assert gradient[0] == pytest.approx([0.6 * RESIDUALS[0], 0, 0])
    assert gradient[1] == [0, 0, 0]


@pytest.mark.parametrize("options", [FLOWRL_ORIGINAL, FLOWRL_PAPER, FLOWRL_CISPO])
@pytest.mark.parametrize("with_partition", [True, False])
def test_gradients(inputs, log_partition_B, options, with_partition):
    """The weight has no gradient, so finite differences must hold the log-ratio fixed."""
    start_BS = inputs.log_probs_BS.detach()

    def loss(log_probs_BS, log_partition_B):
        moved_BS = (log_probs_BS - start_BS).detach()
        moving = LossInputs(
            log_probs_BS=log_probs_BS,
            old_log_probs_BS=inputs.old_log_probs_BS + moved_BS,
            advantages=inputs.advantages,
            mask_BS=inputs.mask_BS,
            reference_log_probs_BS=inputs.reference_log_probs_BS,
        )
        partition_B = log_partition_B if with_partition else None
        return flowrl_loss(moving, partition_B, options).loss

    assert torch.autograd.gradcheck(loss, (start_BS.clone().requires_grad_(), log_partition_B))


def test_the_weight_of_a_long_sequence_does_not_overflow(make_inputs):
    """A log-ratio of 50 on 200 tokens: the sequence ratio is exp(10,000)."""
    inputs = make_inputs([[math.exp(50.0)] * 200], [1.0], reference=-1.0, dtype=torch.float32)
    for options in (FLOWRL_ORIGINAL, FLOWRL_PAPER):
        loss, _ = flowrl_loss(inputs, None, options)
        assert torch.autograd.grad(loss, inputs.log_probs_BS)[0].isfinite().all()


def test_wrong_inputs(make_inputs, inputs):
    with pytest.raises(TokenValueError, match="log_partition_B is float16"):
        flowrl_loss(inputs, torch.zeros(2).half())
    with pytest.raises(TokenValueError, match="log_partition_B has the shape"):
        flowrl_loss(inputs, torch.zeros(2, 1))
    with pytest.raises(TokenValueError, match="reference_log_probs_BS"):
        flowrl_loss(make_inputs([[1.0]], [1.0]), None)
    with pytest.raises(ValueError, match="weight_bounds"):
        FlowRLOptions(weight_bounds=(1.1, 1.2))


def test_the_denominator_of_a_whole_step(inputs):
    halves = partial(flowrl_loss, inputs, None, denominator=4)
    assert halves().loss.item() == pytest.approx(flowrl_loss(inputs, None).loss.item() / 2)


def test_the_optimum_is_the_reference_times_exp_beta_reward():
    """One prompt, three one-token answers: π = π_ref exp(β A) / Z makes all residuals 0."""
    reference_V = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    advantages_V = torch.tensor([0.1, -0.2, 0.3], dtype=torch.float64)
    target_V = reference_V * (2.0 * advantages_V).exp()
    log_probs_V1 = (target_V / target_V.sum()).log()[:, None].requires_grad_()
    optimum = LossInputs(
        log_probs_BS=log_probs_V1,
        old_log_probs_BS=log_probs_V1.detach(),
        advantages=advantages_V,
        mask_BS=torch.ones(3, 1, dtype=torch.bool),
        reference_log_probs_BS=reference_V.log()[:, None],
    )
    log_partition_V = target_V.sum().log().expand(3)
    loss, _ = flowrl_loss(optimum, log_partition_V, FlowRLOptions(beta=2.0))
    assert loss.item() == pytest.approx(0, abs=1e-30)
    assert torch.autograd.grad(loss, log_probs_V1)[0].abs().max() < 1e-14
    assert flowrl_loss(optimum, log_partition_V, FlowRLOptions(beta=2.5)).loss > 1e-4
