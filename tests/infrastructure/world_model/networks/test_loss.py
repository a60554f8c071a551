import math

import pytest
import torch

from infrastructure.world_model.networks.loss import (
    bound_log_variance,
    bounded_variance,
    ensemble_loss,
)


def test_variances_stay_within_bounds():
    bounded = bound_log_variance(torch.tensor([-1e4, 0.0, 1e4]))
    assert bounded.tolist() == pytest.approx([-14.0, 0.0, 4.0], abs=0.03)


def test_the_bounded_variance_is_the_exponential_of_its_logarithm():
    raw = torch.linspace(-40.0, 40.0, 2001, dtype=torch.float64)
    kept = raw.clone()
    expected = bound_log_variance(raw).exp()
    torch.testing.assert_close(bounded_variance(raw), expected, rtol=1e-9, atol=0.0)
    usual = (raw > -16.0) & (raw < 6.0)  # beyond it softplus is rounded to its argument
    torch.testing.assert_close(bounded_variance(raw)[usual], expected[usual], rtol=1e-14, atol=0.0)
    assert torch.equal(raw, kept)


def test_the_loss_is_beta_nll_and_cross_entropy():
    """Two members, one row: each target's mean over members, then the mean over targets."""
    raw = {
        "y.mean": torch.tensor([1.0, 3.0])[:, None, None],
        "y.log_variance": torch.tensor([0.5, 0.5])[:, None, None],
        "label.logits": torch.tensor([[[0.0, 1.0]], [[1.0, 0.0]]]),
    }
    batch = {"dense": torch.zeros(1, 0), "target.y": torch.tensor([[2.0]])}
    batch["target.label"] = torch.tensor([1])
    seen = []
    loss = ensemble_loss(lambda inputs: seen.append(set(inputs)) or raw, batch)
    log_variance = bound_log_variance(torch.tensor(0.5)).item()
    nll = 0.5 * (log_variance + math.exp(-log_variance))
    box = math.exp(0.5 * log_variance) * nll
    entropies = [math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))]
    assert loss.item() == pytest.approx((box + sum(entropies) / 2) / 2, rel=1e-5)
    assert seen == [{"dense"}]  # no target reaches the network


def test_the_weight_of_the_likelihood_has_no_gradient():
    value = torch.tensor([[[0.3]]], requires_grad=True)
    raw = {"y.mean": torch.zeros(1, 1, 1), "y.log_variance": value}
    ensemble_loss(lambda _: raw, {"target.y": torch.tensor([[1.0]])}).backward()
    log_variance = bound_log_variance(value)
    nll = 0.5 * (log_variance + (-log_variance).exp())
    weighted = (0.5 * log_variance).exp().detach() * nll
    [expected] = torch.autograd.grad(weighted.sum(), value)
    assert torch.allclose(value.grad, expected)
