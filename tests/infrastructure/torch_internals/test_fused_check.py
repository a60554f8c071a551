import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW

from infrastructure.torch_internals import direct_step
from infrastructure.torch_internals.fused_check import skips_and_unscales

CPU = torch.device("cpu")


@pytest.mark.parametrize("kind", [Adam, AdamW, SGD, Adagrad])
def test_fused_optimizers_of_this_torch_unscale_and_skip(kind):
    assert skips_and_unscales(kind, CPU)


def test_a_kernel_that_ignores_the_overflow_fails_the_check(monkeypatch):
    kernel = direct_step._adam

    def ignores(*args, **kwargs):
        kernel(*args, **{**kwargs, "found_inf": None})

    monkeypatch.setattr(direct_step, "_adam", ignores)
    assert not skips_and_unscales.__wrapped__(Adam, CPU)


@pytest.mark.parametrize("name", ["_adam", "_add"])
def test_without_the_kernel_torchs_own_step_is_taken(name, monkeypatch):
    monkeypatch.setattr(direct_step, name, None)
    assert skips_and_unscales.__wrapped__(Adam, CPU)


def test_where_hooks_are_unknown_every_optimizer_counts_as_observed(monkeypatch):
    monkeypatch.setattr(direct_step, "_pre_hooks", direct_step._UNKNOWN)
    optimizer = Adam([torch.nn.Parameter(torch.ones(1))], fused=True)
    assert direct_step.is_observed(optimizer)
    assert not direct_step.unobserved_step(optimizer)
