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


LAYERS = [
    *(nn.SiLU(), nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.GELU(approximate="tanh")),
    *(nn.Identity(), nn.LeakyReLU(), nn.ELU(), nn.Softplus(), nn.Mish()),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("fan_in", "bias"), [(16, True), (16, False), (3, True)])
def test_outputs_and_gradients_are_those_of_the_models(layer, precision, fan_in, bias):
    torch.manual_seed(0)
    half = torch.autocast("cpu", torch.bfloat16, enabled=precision is torch.bfloat16)
    models = [
        nn.Sequential(nn.Linear(fan_in, 32, bias=bias), layer, nn.Linear(32, 64, bias=bias))
        for _ in range(3)
    ]
    rows = [torch.randn(32, fan_in) for _ in models]
    parameters = {
        name: torch.stack([model.get_parameter(name).detach() for model in models])
        for name, _ in models[0].named_parameters()
    }
    leaves = [each.requires_grad_() for each in parameters.values()]
    calls = [Call(arguments=(each,), training=True, generator=None) for each in rows]
    weights = torch.randn(3, 32, 64)
    with half:
        outputs = SequentialForm(models[0]).forward(parameters, calls)
    gradients = outputs.gradients(leaves, weights)
    for i, (model, each) in enumerate(zip(models, rows, strict=True)):
        with half:
            output = model(each).float()
        own = torch.autograd.grad(output, list(model.parameters()), weights[i])
        assert torch.equal(output, outputs.stack()[i])
        assert all(torch.equal(g[i], one) for g, one in zip(gradients, own, strict=True))


def test_known_layers_are_one_pass_without_autograd():
    model = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))
    parameters = {n: torch.stack([p, p]).detach() for n, p in model.named_parameters()}
    calls = [Call(arguments=(torch.randn(32, 16),), training=True, generator=None)] * 2
    outputs = SequentialForm(model).forward(parameters, calls)
    assert outputs.backward is not None
    assert outputs.stack().grad_fn is None


@pytest.mark.parametrize("probability", [0.3, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_is_torchs_with_a_generator_of_its_own(probability, dtype):
    value = torch.randn(33, 7).to(dtype)
    torch.manual_seed(5)
    expected = nn.functional.dropout(value, probability)
    got = dropout(value, probability, torch.Generator().manual_seed(5))
    assert torch.equal(expected, got)
