import math
from functools import partial

import pytest
import torch

from infrastructure.policy.losses import kl_loss
from infrastructure.policy.losses.kl import KLEstimator, kl_estimate
from infrastructure.policy.losses.reductions import sequence_mean


def test_estimates_by_hand():
    """r = log(reference / policy) = log 2: k1 = -log 2, k2 = (log 2)² / 2, k3 = 2 - 1 - log 2."""
    r = torch.tensor(math.log(2.0))
    assert kl_estimate(r, KLEstimator.K1).item() == pytest.approx(-0.693147, abs=1e-6)
    assert kl_estimate(r, KLEstimator.K2).item() == pytest.approx(0.240227, abs=1e-6)
    assert kl_estimate(r, KLEstimator.K3).item() == pytest.approx(0.306853, abs=1e-6)


def test_k3_of_tiny_log_ratios_is_exact_in_float32():
    """FP32 against FP32 differs by 1e-8: exp(r) - 1 - r is then rounding, of either sign."""
    r = torch.logspace(-9, 0.9, 400).repeat(2)
    r[400:] *= -1
    exact = (
        r.double().square() / 2 * (1 + r.double() / 3 + r.double() ** 2 / 12 + r.double() ** 3 / 60)
    )
    exact = torch.where(r.abs() < 1e-3, exact, r.double().expm1() - r.double())
    estimate = kl_estimate(r, KLEstimator.K3)
    assert (estimate.double() / exact - 1).abs().max() < 2e-5
    assert (estimate > 0).all()
    naive = r.exp() - 1 - r
    assert (naive < 0).any()


@pytest.mark.parametrize("estimator", [KLEstimator.K2, KLEstimator.K3])
def test_gradients_of_the_estimates(estimator):
    r = torch.tensor([-3.0, -0.02, -0.005, 0.0, 0.003, 0.5, 4.0]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda r: kl_estimate(r, estimator), (r,))


def test_extremes_are_finite():
    r = torch.tensor([50.0, -50.0, 1e6, -1e6], requires_grad=True)
    k3 = kl_estimate(r, KLEstimator.K3)
    k3.sum().backward()
    assert k3.tolist() == pytest.approx([math.e**10 - 11, math.e**-10 + 9] * 2)
    assert r.grad.tolist() == [0.0] * 4  # constant beyond the bound
    assert kl_estimate(r, KLEstimator.K2).isfinite().all()


def test_penalty_by_hand(make_inputs, gradient_of):
    """Policy 1/2 and 1/4, reference 1/4: k3 = 1/2 - 1 + log 2 and 0.

    The gradient of k3 by log π is 1 - ref / π: (1 - 1/2) / 2 tokens.
    """
    inputs = make_inputs([[2.0, 1.0, 9.0]], [0.0], [[True, True, False]], reference=math.log(0.25))
    loss, stats = kl_loss(inputs)
    assert loss.item() == pytest.approx((math.log(2) - 0.5) / 2)
    assert gradient_of(loss, inputs)[0] == pytest.approx([0.25, 0, 0])
    assert stats["reference_kl"].item() == pytest.approx(loss.item())


def test_penalty_takes_reduction_and_correction(make_inputs):
    inputs = make_inputs(
        [[2.0, 2.0], [2.0, 2.0]],
        [0.0, 0.0],
        [[True, True], [True, False]],
        reference=math.log(0.25),
        weights=[[0.5, 0.0], [2.0, 0.0]],
    )
    loss, _ = kl_loss(inputs, KLEstimator.K2, reduction=sequence_mean)
    assert loss.item() == pytest.approx(math.log(2) ** 2 / 2 * (0.5 / 2 + 2) / 2)


def test_penalty_gradients(make_inputs, gradient_is_that_of_finite_differences):
    inputs = make_inputs([[2.0, 0.7]], [0.0], reference=-1.0, weights=[[1.0, 0.4]])
    for estimator in (KLEstimator.K2, KLEstimator.K3):
        gradient_is_that_of_finite_differences(partial(kl_loss, estimator=estimator), inputs)


def test_k1_is_refused_as_a_loss(make_inputs):
    with pytest.raises(ValueError, match="k1"):
        kl_loss(make_inputs([[1.0]], [0.0], reference=-1.0), KLEstimator.K1)


def test_which_divergence_each_estimator_descends():
    """Expected gradients over the tokens of a softmax policy, against the exact divergences."""
    logits_V = torch.tensor([0.3, -0.5, 1.1]).double().requires_grad_()
    reference_V = torch.tensor([0.2, 0.5, 0.3]).double()

    def gradient(value):
        return torch.autograd.grad(value, logits_V, retain_graph=True)[0]

    log_policy_V = logits_V.log_softmax(0)
    policy_V = log_policy_V.exp()
    towards = (policy_V * (log_policy_V - reference_V.log())).sum()  # KL(policy || reference)
    away = (reference_V * (reference_V.log() - log_policy_V)).sum()  # KL(reference || policy)

    def expected(estimator):
        estimate_V = kl_estimate(reference_V.log() - logits_V.log_softmax(0), estimator)
        return gradient((policy_V.detach() * estimate_V).sum())

    assert torch.allclose(expected(KLEstimator.K1), torch.zeros(3).double())
    assert torch.allclose(expected(KLEstimator.K2), gradient(towards))
    assert torch.allclose(expected(KLEstimator.K3), gradient(away))
