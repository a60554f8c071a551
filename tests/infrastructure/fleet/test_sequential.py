import pytest
import torch
from torch import nn

from infrastructure.fleet.forms import Call, NotStackableError, dropout
from infrastructure.fleet.sequential import SequentialForm


def test_signatures_keep_apart_what_cannot_be_computed_together():
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    form = SequentialForm(model)
    plain = form.signature(model, (torch.zeros(4, 16),))
    assert plain == form.signature(model, (torch.ones(4, 16),))
    assert plain != form.signature(model, (torch.zeros(5, 16),))
    assert plain != form.signature(model, (torch.zeros(5, 16)[1:].clone()[:, 1:],))
    assert plain != form.signature(model.eval(), (torch.zeros(4, 16),))


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("text",),
        (torch.zeros(4, 16), None),
        (torch.zeros(2, 4, 16),),
        (torch.zeros(4, 16).double(),),
        (torch.zeros(4, 16, requires_grad=True),),
    ],
)
def test_an_unusual_call_trains_alone(arguments):
    model = nn.Sequential(nn.Linear(16, 16))
    with pytest.raises(NotStackableError, match="its model"):
        SequentialForm(model).signature(model, arguments)


@pytest.mark.parametrize("fan_in", [16, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_outputs_are_those_of_the_models(fan_in, bias):
    torch.manual_seed(0)
    models = [
        nn.Sequential(nn.Linear(fan_in, 32, bias=bias), nn.Tanh(), nn.Linear(32, 5, bias=bias))
        for _ in range(3)
    ]
    rows = [torch.randn(32, fan_in) for _ in models]
    parameters = {
        name: torch.stack([model.get_parameter(name).detach() for model in models])
        for name, _ in models[0].named_parameters()
    }
    calls = [Call(arguments=(each,), training=True, generator=None) for each in rows]
    outputs = SequentialForm(models[0]).forward(parameters, calls).of_members()
    for model, each, output in zip(models, rows, outputs, strict=True):
        assert torch.equal(model(each), output)


@pytest.mark.parametrize("probability", [0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_torchs_with_a_generator_of_its_own(probability, dtype):
    value = torch.randn(33, 7).to(dtype)
    torch.manual_seed(5)
    expected = nn.functional.dropout(value, probability)
    got = dropout(value, probability, torch.Generator().manual_seed(5))
    assert torch.equal(expected, got)
