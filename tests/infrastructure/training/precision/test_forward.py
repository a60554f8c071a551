from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.training.precision import Precision
from infrastructure.training.precision.forward import PrecisionForward, to_float32

CPU = torch.device("cpu")
Pair = namedtuple("Pair", "a b")


@dataclass
class Heads:
    mean: torch.Tensor
    name: str


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x):
        return self.encode(x)

    def encode(self, x):
        return self.linear(x)


@pytest.mark.parametrize("precision", list(Precision))
def test_calls_and_methods_compute_in_the_precision_and_return_float32(precision):
    model = Model()
    seen = []
    model.linear.register_forward_hook(lambda *a: seen.append(a[-1].dtype))
    forward = PrecisionForward(model, CPU, precision)
    x = torch.randn(2, 3)
    outputs = []
    forward.compute_loss(
        lambda f, b: outputs.extend([f(b), f.method("encode", b)]) or f(b).mean(), x
    )
    assert {out.dtype for out in outputs} == {torch.float32}
    assert set(seen) == {precision.compute}


def test_autocast_is_off_in_the_loss_itself():
    forward = PrecisionForward(Model(), CPU, Precision.FP16)
    dtypes = []

    def loss(f, batch):
        dtypes.append((f(batch) @ f(batch).T).dtype)
        return f(batch).mean()

    forward.compute_loss(loss, torch.randn(2, 3))
    assert dtypes == [torch.float32]


def test_the_weight_is_cast_once_for_all_calls_of_a_step():
    class Casts(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += "_to_copy" in str(func) and args[0].shape == (3, 3)
            return func(*args, **(kwargs or {}))

    forward = PrecisionForward(Model(), CPU, Precision.BF16)
    x = torch.randn(2, 3)
    with Casts() as casts:
        forward.compute_loss(lambda f, b: sum(f(b).mean() for _ in range(5)), x)
    assert casts.count == 1


def test_structures_are_cast_and_other_objects_refused():
    half = torch.ones(2, dtype=torch.float16)
    whole = torch.ones(2, dtype=torch.int64)
    result = to_float32({"a": [half, whole], "b": Pair(half, 1), "c": Heads(half, "n"), "d": None})
    assert result["a"][0].dtype == torch.float32
    assert result["a"][1].dtype == torch.int64
    assert result["b"].a.dtype == torch.float32
    assert result["c"].mean.dtype == torch.float32
    with pytest.raises(TypeError, match="got Normal"):
        to_float32(torch.distributions.Normal(0.0, 1.0))


def test_bypassing_the_precision_raises():
    forward = PrecisionForward(Model(), CPU, Precision.FP16)
    with pytest.raises(AttributeError, match=r"forward\.method\('linear', \.\.\.\)"):
        forward.linear(torch.randn(2, 3))
