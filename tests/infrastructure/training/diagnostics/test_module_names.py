from itertools import pairwise

import pytest
import torch
from torch import nn

from infrastructure.training.diagnostics.module_names import (
    NameNodes,
    RunningModules,
    floating_tensors,
    named_nodes,
)


@pytest.fixture
def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))


def test_nodes_are_named_after_the_module_that_made_them(model: nn.Sequential) -> None:
    running = RunningModules(model)
    with NameNodes(running):
        loss = model(torch.ones(4, 2)).square().mean()
    names = [name for _, name in named_nodes(loss)]
    order = [name for name, following in pairwise([*names, ""]) if name != following]
    assert [name for name in order if "Sequential" not in name] == [
        "2 (Linear)",
        "1 (Tanh)",
        "0 (Linear)",
    ]
    assert "the loss" in order[0]
    assert not any(hasattr(node, "variable") for node, _ in named_nodes(loss))


def test_the_innermost_module_is_named_even_after_an_error(model: nn.Sequential) -> None:
    running = RunningModules(model)
    before = str(running)
    with pytest.raises(RuntimeError):
        model(torch.ones(4, 5))
    assert str(running) == before
    running.remove()
    assert not model._forward_pre_hooks
    assert not model[0]._forward_hooks


def test_floating_tensors_are_found_in_nested_values() -> None:
    first, second, whole = torch.ones(1), torch.zeros(1), torch.ones(1, dtype=torch.int64)
    found = list(floating_tensors({"a": (first, [whole, second]), "b": "text"}))
    assert [each.data_ptr() for each in found] == [first.data_ptr(), second.data_ptr()]
