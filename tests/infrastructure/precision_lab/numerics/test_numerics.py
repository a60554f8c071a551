"""Half precision place by place: equal to the trainer's and to a pure model, and each place alone.

Legend: B sequences, S tokens, D width, V vocabulary.
"""

import copy
from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, softmax

from infrastructure.events import Role
from infrastructure.events.role_precision import HalfName, RolePrecision
from infrastructure.precision_lab.numerics import Numerics
from infrastructure.precision_lab.places import Operation, Place
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.keep_fp32 import keep_in_fp32
from infrastructure.training.precision.roles import RoleForward

CPU = torch.device("cpu")
HALVES: tuple[HalfName, ...] = ("fp16", "bf16")


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x_BSD: Tensor) -> Tensor:
        q_BSD, k_BSD, v_BSD = self.qkv(self.norm(x_BSD)).chunk(3, dim=-1)
        scores_BSS = q_BSD @ k_BSD.transpose(-1, -2) / x_BSD.shape[-1] ** 0.5
        x_BSD = x_BSD + softmax(scores_BSS, dim=-1) @ v_BSD
        # as RMS normalisations of language models do
        wide_BSD = x_BSD.float()
        wide_BSD = wide_BSD * torch.rsqrt(wide_BSD.pow(2).mean(-1, keepdim=True) + 1e-6)
        return x_BSD + self.mlp(wide_BSD.to(x_BSD.dtype))


class Model(nn.Module):
    def __init__(self, width: int = 16, vocabulary: int = 20) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens_BS: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(tokens_BS)))


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture
def tokens_BS() -> Tensor:
    return torch.randint(0, 20, (3, 7), generator=torch.Generator().manual_seed(1))


def everywhere(half: str) -> Mapping[Role, RolePrecision]:
    return {Role.POLICY: RolePrecision.parse(f"{half}/{half}/{half}")}


def under_autocast(half: str) -> Mapping[Role, RolePrecision]:
    return {Role.POLICY: RolePrecision.parse(f"fp32/{half}/fp32")}


def log_probs_and_gradients(numerics: Numerics, model: Model, tokens_BS: Tensor) -> list[Tensor]:
    model.zero_grad()
    with numerics:
        with numerics.role(Role.POLICY):
            log_probs_BSV = log_softmax(model(tokens_BS), dim=-1)
        log_probs_BSV.float().square().mean().backward()
    gradients = [each.grad for each in model.parameters()]
    assert all(each is not None for each in gradients)
    return [
        log_probs_BSV.detach(),
        *(each.detach().clone() for each in gradients if each is not None),
    ]


def test_without_half_types_nothing_changes(model: Model, tokens_BS: Tensor) -> None:
    numerics = Numerics({Role.POLICY: model}, {})
    results = log_probs_and_gradients(numerics, model, tokens_BS)
    assert numerics.places() == []
    model.zero_grad()
    expected = log_softmax(model(tokens_BS), dim=-1)
    expected.square().mean().backward()
    assert torch.equal(results[0], expected)
    assert all(torch.equal(a, b.grad) for a, b in zip(results[1:], model.parameters(), strict=True))


@pytest.mark.parametrize("half", HALVES)
def test_pure_equals_a_model_in_the_half_type(
    model: Model, tokens_BS: Tensor, half: HalfName
) -> None:
    numerics = Numerics({Role.POLICY: model}, everywhere(half))
    results = log_probs_and_gradients(numerics, model, tokens_BS)
    pure = copy.deepcopy(model).to(Precision(half).compute)
    expected = log_softmax(pure(tokens_BS), dim=-1)
    pure.zero_grad()
    expected.float().square().mean().backward()
    assert results[0].dtype == expected.dtype
    assert torch.equal(results[0], expected)
    for (name, parameter), gradient in zip(pure.named_parameters(), results[1:], strict=True):
        assert parameter.grad is not None
        assert torch.equal(gradient, parameter.grad.float()), name
    assert all(each.dtype == torch.float32 for each in model.parameters())


@pytest.mark.parametrize("half", HALVES)
def test_autocast_equals_that_of_the_trainer(
    model: Model, tokens_BS: Tensor, half: HalfName
) -> None:
    numerics = Numerics({Role.POLICY: model}, under_autocast(half))
    results = log_probs_and_gradients(numerics, model, tokens_BS)
    model.zero_grad()
    forward = PrecisionForward(model, CPU, Precision(half))
    expected = forward.compute_loss(lambda each, batch: log_softmax(each(batch), dim=-1), tokens_BS)
    expected.square().mean().backward()
    assert torch.equal(results[0], expected)
    assert all(torch.equal(a, b.grad) for a, b in zip(results[1:], model.parameters(), strict=True))


@pytest.mark.parametrize("half", HALVES)
def test_places_in_fp32_equal_modules_that_the_trainer_keeps_in_fp32(
    model: Model, tokens_BS: Tensor, half: HalfName
) -> None:
    kept = [name for name, _ in model.blocks[1].named_modules(prefix="blocks.1")]
    places = [Place(Role.POLICY, name, operation) for name in kept for operation in Operation]
    numerics = Numerics({Role.POLICY: model}, under_autocast(half), places)
    results = log_probs_and_gradients(numerics, model, tokens_BS)
    trained = copy.deepcopy(model)
    trained.zero_grad()
    keep_in_fp32(trained, ["blocks.1"], CPU)
    forward = PrecisionForward(trained, CPU, Precision(half))
    expected = forward.compute_loss(lambda each, batch: log_softmax(each(batch), dim=-1), tokens_BS)
    expected.square().mean().backward()
    assert torch.equal(results[0], expected)
    for parameter, gradient in zip(trained.parameters(), results[1:], strict=True):
        assert torch.equal(gradient, parameter.grad)


@pytest.mark.parametrize("half", HALVES)
def test_a_frozen_role_comes_near_to_the_one_of_the_rollout(
    model: Model, tokens_BS: Tensor, half: HalfName
) -> None:
    """`RoleForward` keeps what its autocast leaves in float32; here every operation is in half."""
    precision = RolePrecision.parse(f"{half}/{half}/fp32")
    numerics = Numerics({Role.REFERENCE: model}, {Role.REFERENCE: precision})
    with numerics, numerics.role(Role.REFERENCE), torch.no_grad():
        logits_BSV = model(tokens_BS)
    expected_BSV = RoleForward(model, CPU, precision)(tokens_BS)
    with torch.no_grad():
        exact_BSV = model(tokens_BS)
    assert logits_BSV.dtype == torch.float32
    error = (logits_BSV - exact_BSV).square().mean().sqrt()
    other = (expected_BSV - exact_BSV).square().mean().sqrt()
    assert 0.5 < error / other < 2


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("preset", [everywhere, under_autocast])
def test_every_place_in_fp32_is_fp32(
    model: Model, tokens_BS: Tensor, half: HalfName, preset: object
) -> None:
    precisions = preset(half)  # type: ignore[operator]
    numerics = Numerics({Role.POLICY: model}, precisions)
    log_probs_and_gradients(numerics, model, tokens_BS)
    places = numerics.places()
    assert places
    exact = log_probs_and_gradients(Numerics({Role.POLICY: model}, {}), model, tokens_BS)
    cured = Numerics({Role.POLICY: model}, precisions, places)
    results = log_probs_and_gradients(cured, model, tokens_BS)
    assert cured.places() == []
    assert torch.equal(results[0], exact[0])
    for gradient, expected in zip(results[1:], exact[1:], strict=True):  # summed in another order
        torch.testing.assert_close(gradient, expected, atol=1e-7, rtol=1e-5)


class Own(nn.Module):
    """Runs a function of its own on the input."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def result_of(
    function: Callable[[Tensor], Tensor], x: Tensor, *fp32: str, role: str = "fp16/fp16/fp16"
) -> tuple[Tensor, list[str]]:
    model = Own(function)
    precisions = {Role.VALUE: RolePrecision.parse(role)}
    places = [Place.parse(each) for each in fp32]
    with Numerics({Role.VALUE: model}, precisions, places) as numerics, numerics.role(Role.VALUE):
        result = model(x)
    return result, [str(each) for each in numerics.places()]


def accumulated(x: Tensor) -> Tensor:
    total = torch.zeros(())
    for each in x:
        total += each
    return total


def test_a_sum_in_place_is_rounded_after_each_addition() -> None:
    x = torch.full((3000,), 1.0)
    half, places = result_of(accumulated, x)
    assert half == 2048  # 2049 is no number of FP16
    assert places == ["value::compute"]
    assert result_of(accumulated, x, "value::compute") == (3000, [])


def test_reductions_are_a_place_of_their_own() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 3).sum()

    x = torch.full((3000,), 10.0)
    _, places = result_of(function, x)
    assert places == ["value::compute", "value::reduction"]
    assert result_of(function, x)[0].isinf()
    cured, places = result_of(function, x, "value::reduction")
    assert cured == 90000
    assert places == ["value::compute"]
    assert result_of(function, x, "value::compute")[0].isinf()


def test_what_the_model_casts_to_float32_stays_float32() -> None:
    def function(x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        return (wide.square() * 2).sum(-1, keepdim=True).sqrt().to(x.dtype)

    x = torch.full((4,), 600.0)  # 360,000 squared is more than FP16 holds
    half, _ = result_of(function, x)
    assert half.dtype == torch.float16
    torch.testing.assert_close(half.float(), torch.tensor([1697.06]), atol=1, rtol=0)


def test_a_place_in_fp32_does_not_widen_what_follows() -> None:
    """The dtype that the model reads is that of the half type, so its casts go back to it."""

    def function(x: Tensor) -> Tensor:
        y = torch.cat([x.sum()[None], x]).to(x.dtype)
        return y * 2

    result, places = result_of(function, torch.ones(3), "value::reduction")
    assert places == ["value::compute"]
    assert result.dtype == torch.float16


def test_weights_are_rounded_without_being_changed() -> None:
    model = nn.Linear(1, 1, bias=False)
    exact = 1 + 2**-12
    with torch.no_grad():
        model.weight.fill_(exact)
    x = torch.ones(1)
    stored = {Role.VALUE: RolePrecision.parse("fp16/fp32/fp32")}
    with Numerics({Role.VALUE: model}, stored) as numerics, numerics.role(Role.VALUE):
        assert model(x) == 1
    assert [str(each) for each in numerics.places()] == ["value::storage"]
    assert model.weight == exact
    with Numerics({Role.VALUE: model}, stored, numerics.places()) as n, n.role(Role.VALUE):
        assert model(x) == exact


def test_a_mask_that_the_half_type_does_not_hold_is_an_error_as_in_a_pure_model() -> None:
    def function(x: Tensor) -> Tensor:
        return x.masked_fill(x > 0, -1e9)

    with pytest.raises(RuntimeError, match="without overflow"):
        result_of(function, torch.ones(2))
    assert result_of(function, torch.ones(2), "value::compute")[0].tolist() == [-1e9, -1e9]


def test_after_an_error_the_models_are_as_before(model: Model) -> None:
    numerics = Numerics({Role.POLICY: model}, everywhere("fp16"))
    with pytest.raises(IndexError), numerics, numerics.role(Role.POLICY):
        model(torch.tensor([[1000]]))
    assert all(not each._forward_hooks and not each._forward_pre_hooks for each in model.modules())
    with numerics, numerics.role(Role.POLICY):  # it can be used again
        assert model(torch.tensor([[1]])).dtype == torch.float16


def test_roles_without_a_model_round_what_they_take() -> None:
    bf16 = RolePrecision.parse("bf16/bf16/bf16")
    a, b = torch.tensor([1000.5]), torch.tensor([1000.0])
    with Numerics({}, {Role.KL: bf16}) as numerics:
        with numerics.role(Role.KL):
            half = a - b
        with numerics.role(Role.ADVANTAGE):
            exact = a - b
        assert (half + 1000.5).dtype == torch.float32  # outside of any role
    assert half.dtype == torch.bfloat16
    assert half == 0
    assert exact == 0.5
    assert [str(each) for each in numerics.places()] == ["kl::compute"]


def test_recurrent_networks_run_in_the_half_type() -> None:
    torch.manual_seed(0)
    model = nn.LSTM(3, 4)
    x = torch.randn(5, 3)
    precisions = {Role.WORLD_MODEL: RolePrecision.parse("bf16/bf16/bf16")}
    with Numerics({Role.WORLD_MODEL: model}, precisions) as n, n.role(Role.WORLD_MODEL):
        result, _ = model(x)
    expected, _ = copy.deepcopy(model).bfloat16()(x.bfloat16())
    assert torch.equal(result, expected)
