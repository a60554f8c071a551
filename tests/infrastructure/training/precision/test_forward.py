from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from infrastructure.training.precision import Precision
from infrastructure.training.precision.forward import PrecisionForward

CPU = torch.device("cpu")


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


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_an_object_in_use_is_not_replaced_behind_its_user(precision):
    class State:
        def __init__(self, value):
            self.value = value

    class Recurrent(Model):
        def forward(self, x, state=None):
            state = state or State(torch.zeros(2, 3))
            state.value = self.linear(x) + state.value.to(self.linear(x).dtype)
            return {"state": state, "value": state.value}

        def keeping(self, x):
            self.kept = State(self.linear(x))
            return self.kept

    model = Recurrent()
    forward = PrecisionForward(model, CPU, Precision(precision))
    x = torch.randn(2, 3)
    fresh = forward(x)
    assert isinstance(fresh["state"], State)
    assert fresh["state"].value is fresh["value"]  # one tensor before, and after
    assert fresh["value"].dtype == torch.float32
    mine = State(torch.zeros(2, 3))
    assert forward(x, mine)["state"] is mine
    assert mine.value.dtype == Precision(precision).compute
    assert forward.method("keeping", x) is model.kept
    assert model.kept.value.dtype == Precision(precision).compute


def test_gradients_flow_through_what_was_cast():
    forward = PrecisionForward(model := Model(), CPU, Precision.BF16)
    loss = forward.compute_loss(lambda f, b: f(b).square().mean(), torch.randn(2, 3))
    loss.backward()
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())


def test_bypassing_the_precision_raises():
    forward = PrecisionForward(Model(), CPU, Precision.FP16)
    with pytest.raises(AttributeError, match=r"forward\.method\('linear', \.\.\.\)"):
        forward.linear(torch.randn(2, 3))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("encoed", r"\('encoed'\): Model .*encode"),
        ("linear_weight", r"\('linear_weight'\): Model .*; it has "),
        ("training", r"\('training'\): Model"),
    ],
)
def test_an_unknown_method_is_named_with_those_there_are(name, message):
    with pytest.raises(AttributeError, match=message):
        PrecisionForward(Model(), CPU, Precision.FP32).method(name, torch.randn(2, 3))


def test_an_error_inside_a_method_stays_as_it_is():
    class Failing(Model):
        def encode(self, x):
            return x.unknown

    with pytest.raises(AttributeError, match="'unknown'"):
        PrecisionForward(Failing(), CPU, Precision.FP32).method("encode", torch.randn(2, 3))
