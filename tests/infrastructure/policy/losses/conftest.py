"""Small batches whose losses can be computed by hand."""

import math

import pytest
import torch

from infrastructure.policy.corrections import Corrected
from infrastructure.policy.losses import LossInputs


@pytest.fixture
def make_inputs():
    """Inputs from ratios of trained to old policy; old log-probabilities are all log(1/4)."""

    def make(ratios, advantages, mask=None, *, reference=None, weights=None, dtype=torch.float64):
        ratios_BS = torch.tensor(ratios, dtype=dtype)
        mask_BS = torch.tensor(mask) if mask else torch.ones_like(ratios_BS, dtype=torch.bool)
        old_BS = torch.full_like(ratios_BS, math.log(0.25))
        correction = None
        if weights is not None:
            weights_BS = torch.tensor(weights, dtype=dtype)
            correction = Corrected(weights_BS=weights_BS, kept_BS=weights_BS != 0)
        return LossInputs(
            log_probs_BS=(old_BS + ratios_BS.log()).requires_grad_(),
            old_log_probs_BS=old_BS,
            advantages=torch.tensor(advantages, dtype=dtype),
            mask_BS=mask_BS,
            reference_log_probs_BS=None
            if reference is None
            else torch.full_like(old_BS, reference),
            correction=correction,
        )

    return make


@pytest.fixture
def gradient_of():
    """Gradient of a loss by the log-probabilities, ``[B, S]`` as lists."""

    def gradient(loss, inputs):
        return torch.autograd.grad(loss, inputs.log_probs_BS)[0].tolist()

    return gradient


@pytest.fixture
def gradient_is_that_of_finite_differences():
    """Hold the gradient of ``loss(inputs)`` to finite differences in float64."""

    def check(loss, inputs):
        def of_log_probs(log_probs_BS):
            return loss(
                LossInputs(
                    log_probs_BS=log_probs_BS,
                    old_log_probs_BS=inputs.old_log_probs_BS,
                    advantages=inputs.advantages,
                    mask_BS=inputs.mask_BS,
                    reference_log_probs_BS=inputs.reference_log_probs_BS,
                    correction=inputs.correction,
                )
            ).loss

        start_BS = inputs.log_probs_BS.detach().requires_grad_()
        assert torch.autograd.gradcheck(of_log_probs, (start_BS,))

    return check
