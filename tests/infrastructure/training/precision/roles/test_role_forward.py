import copy

import pytest
import torch
from torch import nn

from infrastructure.training.precision.roles import RoleForward, RolePrecision

CPU = torch.device("cpu")
FP32 = RolePrecision("fp32", "fp32", "fp32")
HALVES = ("fp16", "bf16")
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


class Tied(nn.Module):
    """Embedding and head share their weights, as in most language models."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.norm = nn.BatchNorm1d(8)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def hidden(self, tokens):
        return self.dropout(self.norm(self.embedding(tokens)))

    def forward(self, tokens):
        return self.head(self.hidden(tokens))


@pytest.fixture
def module():
    torch.manual_seed(0)
    return Tied()


TOKENS = torch.arange(16)


def fp32_result(module):
    with torch.no_grad():
        return module.eval()(TOKENS)


@pytest.mark.parametrize("half", HALVES)
def test_stores_computes_and_returns_in_the_types_of_its_role(module, half):
    forward = RoleForward(module, CPU, RolePrecision(half, half, "fp32"))
    assert forward.module.head.weight.dtype == DTYPES[half]
    assert forward.module.norm.weight.dtype == torch.float32
    result = forward(TOKENS)
    assert result.dtype == torch.float32
    assert torch.equal(result, result.to(DTYPES[half]).float())  # it was computed in half
    assert not torch.equal(result, fp32_result(module))
    assert forward.method("hidden", TOKENS).shape == (16, 8)
    pure = RoleForward(module, CPU, RolePrecision(half, half, half))
    assert pure(TOKENS).dtype == DTYPES[half]


def test_rounded_weights_can_be_computed_in_fp32(module):
    forward = RoleForward(module, CPU, RolePrecision("bf16", "fp32", "fp32"))
    weight = forward.module.head.weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, module.head.weight.bfloat16().float())


def test_the_copy_is_frozen_and_the_original_untouched(module):
    forward = RoleForward(module, CPU, RolePrecision("fp16", "fp16", "fp32"))
    assert not any(p.requires_grad for p in forward.module.parameters())
    assert not forward.module.training
    assert module.training
    assert all(p.dtype == torch.float32 and p.requires_grad for p in module.parameters())
    assert not forward(TOKENS).requires_grad


@pytest.mark.parametrize("half", HALVES)
def test_a_rollback_restores_the_float32_weights_exactly(module, half):
    forward = RoleForward(module, CPU, RolePrecision(half, half, "fp32"))
    forward.set_precision(FP32)
    assert forward.precision == FP32
    expected = fp32_result(module)
    assert torch.equal(forward(TOKENS), expected)
    with torch.autocast("cpu", dtype=DTYPES[half]):  # a caller's own region changes nothing
        assert torch.equal(forward(TOKENS), expected)


def test_takes_over_new_weights(module):
    forward = RoleForward(module, CPU, RolePrecision("fp16", "fp16", "fp32"))
    with torch.no_grad():
        module.head.weight += 1.0
    forward.update(module)
    assert forward.module.head.weight.dtype == torch.float16
    forward.set_precision(FP32)
    assert torch.equal(forward(TOKENS), fp32_result(module))


def test_its_state_is_float32_and_continues_exactly_under_any_precision(module):
    forward = RoleForward(module, CPU, RolePrecision("bf16", "bf16", "fp32"))
    state = forward.state_dict()
    assert {each.dtype for each in state.values()} == {torch.float32, torch.int64}
    other = RoleForward(Tied(), CPU, RolePrecision("fp16", "fp16", "fp32"))
    other.load_state_dict(state)
    other.set_precision(RolePrecision("bf16", "bf16", "fp32"))
    assert torch.equal(other(TOKENS), forward(TOKENS))
    other.set_precision(FP32)
    assert torch.equal(other(TOKENS), fp32_result(module))


def test_other_attributes_are_refused(module):
    forward = RoleForward(module, CPU, FP32)
    with pytest.raises(AttributeError, match="would bypass"):
        forward.head(TOKENS)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8)], ids=repr)
def test_a_float32_buffer_beside_half_weights_does_no_harm(norm, half):
    """As in XGLM, whose positions are a buffer that is added to the embeddings."""

    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.norm = nn.Embedding(5, 8), norm
            self.register_buffer("positions", torch.randn(3, 8))

        def forward(self, tokens):
            return self.norm(self.embedding(tokens) + self.positions)

    torch.nn.init.normal_(norm.weight)
    name = "fp16" if half == torch.float16 else "bf16"
    forward = RoleForward(Positions(), CPU, RolePrecision(name, name, "fp32"))
    assert forward(torch.tensor([0, 1, 2])).dtype == torch.float32
    inside = forward.module.norm
    assert torch.equal(inside.weight, inside.weight.to(half).float()), "rounded all the same"
    x = torch.randn(3, 8, dtype=half)
    rounded = copy.deepcopy(norm).to(half)
    assert torch.equal(inside(x), rounded(x)), "as with half weights"
