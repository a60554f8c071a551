from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infrastructure.fleet.forms import Call
from infrastructure.fleet.sequential import SequentialForm

ACTIVATIONS = (nn.SiLU, nn.GELU, nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity, nn.Softplus)
WIDTHS = (16, 32, 48, 64, 17)
MEMBERS = 3


@pytest.mark.process
@settings(max_examples=60)
@given(data=st.data())
def test_every_step_has_the_bits_of_the_members_alone(data: st.DataObject) -> None:
    """Later steps write to the memory of earlier ones, layer by layer."""
    kinds = data.draw(st.lists(st.sampled_from([0, 0, *ACTIVATIONS]), min_size=1, max_size=7))
    width, layers = 32, list[Any]()  # arguments of linear layers, and activations
    for kind in kinds if 0 in kinds else [*kinds, 0]:
        if kind == 0:
            after = data.draw(st.sampled_from(WIDTHS))
            layers.append((width, after, data.draw(st.booleans())))
            width = after
        else:
            layers.append(kind)
    half = data.draw(st.sampled_from([False, False, True]), label="bfloat16")
    torch.manual_seed(0)
    models = [
        nn.Sequential(*(nn.Linear(*a) if isinstance(a, tuple) else a() for a in layers))
        for _ in range(MEMBERS)
    ]
    form = SequentialForm(models[0])
    stacks = {
        name: torch.stack([model.get_parameter(name).detach() for model in models])
        for name, _ in models[0].named_parameters()
    }
    leaves = [each.requires_grad_() for each in stacks.values()]
    for rows in data.draw(st.lists(st.sampled_from([32, 32, 7]), min_size=2, max_size=4)):
        inputs = [torch.randn(rows, 32) for _ in models]
        weights = torch.randn(MEMBERS, rows, width)
        calls = [Call(arguments=(each,), training=True, generator=None) for each in inputs]
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            outputs = form.forward(stacks, calls)
        output = outputs.stack().clone()
        gradients = outputs.gradients(leaves, weights.clone())
        for i, (model, each) in enumerate(zip(models, inputs, strict=True)):
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                alone = model(each).float()
            own = torch.autograd.grad(alone, list(model.parameters()), weights[i])
            assert torch.equal(alone, output[i])
            assert all(torch.equal(g[i], one) for g, one in zip(gradients, own, strict=True))


def test_a_step_does_not_change_the_gradient_that_it_is_given() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU())
    stacks = {name: torch.stack([p, p]).detach() for name, p in model.named_parameters()}
    call = Call(arguments=(torch.randn(32, 16),), training=True, generator=None)
    gradient = torch.randn(2, 32, 32)
    before = gradient.clone()
    outputs = SequentialForm(model).forward(stacks, [call, call])
    outputs.gradients(list(stacks.values()), gradient)
    assert torch.equal(gradient, before)


def test_steps_of_one_shape_use_the_same_memory() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
    stacks = {name: torch.stack([p, p]).detach() for name, p in model.named_parameters()}
    form = SequentialForm(model)
    places = set()
    for _ in range(3):
        call = Call(arguments=(torch.randn(32, 16),), training=True, generator=None)
        outputs = form.forward(stacks, [call, call])
        gradients = outputs.gradients(list(stacks.values()), torch.randn(2, 32, 16))
        places.add((outputs.stack().data_ptr(), *(each.data_ptr() for each in gradients)))
    assert len(places) == 1
