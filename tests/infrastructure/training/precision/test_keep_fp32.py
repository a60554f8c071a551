from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.precision import PrecisionForward, UnknownModuleError
from infrastructure.training.precision.keep_fp32 import (
    find_modules,
    is_kept,
    keep_in_fp32,
    release,
)

CPU = torch.device("cpu")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, x, scale=None):
        x = self.linear(self.norm(x))
        return x if scale is None else x * scale


class Model(nn.Module):
    """Records the dtypes of the products in each of its blocks."""

    def __init__(self, *, reentrant=None):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(3)), nn.Linear(4, 1)
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)

    def encode(self, x):
        return self.blocks[1].linear(x)


def dtypes(model):
    """Dtypes of the results of the linear layers, as they come."""
    seen = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda *a, name=name: seen.setdefault(name, set()).add(a[-1].dtype)
            )
    return seen


def names(model):
    return [name for name, module in model.named_modules() if is_kept(module)]


def test_names_patterns_and_everything_inside_a_module():
    model = Model()
    assert list(find_modules(model, ["blocks.1"])) == [
        "blocks.1",
        "blocks.1.norm",
        "blocks.1.linear",
    ]
    assert list(find_modules(model, ["*.norm"])) == [f"blocks.{i}.norm" for i in range(3)]
    assert "blocks.2.linear" in find_modules(model, ["blocks"])  # a container is never called
    assert list(find_modules(model, ["head", "he*"])) == ["head"]
    assert "" not in find_modules(model, ["*"])


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("blocks.1.nrom", "'blocks.1.norm'"),
        ("norm", "'blocks.0.norm' or 'blocks.1.norm'"),
        ("*.rnn", "some are "),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion_and_nothing_changes(wrong, hint):
    model = Model()
    with pytest.raises(UnknownModuleError, match="no such module") as caught:
        keep_in_fp32(model, ["head", wrong], CPU)
    assert hint in str(caught.value)
    assert repr(wrong) in str(caught.value)
    assert names(model) == []


def test_a_shared_module_is_found_by_each_of_its_names():
    model = nn.ModuleDict({"encoder": Block(), "decoder": Block()})
    model["decoder"].linear = model["encoder"].linear
    assert find_modules(model, ["decoder.linear"]) == {"decoder.linear": model["encoder"].linear}
    keep_in_fp32(model, ["decoder"], CPU)
    assert is_kept(model["encoder"].linear)
    assert not is_kept(model["encoder"].norm)


def test_a_module_whose_name_looks_like_a_pattern_is_found_by_it():
    model = nn.ModuleDict({name: nn.Linear(2, 2) for name in ("[x]", "x", "*")})
    assert list(find_modules(model, ["[x]"])) == ["[x]"]
    assert list(find_modules(model, ["*"])) == ["*"]
    assert list(find_modules(model, ["x*"])) == ["x"]


def test_wrong_collections_of_names_are_refused():
    for wrong in ("head", ["head", ""], [3], None, 7):
        with pytest.raises(ValueError, match="keep_fp32"):
            FP16TrainingConfig(keep_fp32=wrong)


@pytest.mark.parametrize("precision", list(Precision))
def test_a_kept_module_computes_in_fp32_and_the_others_in_the_precision(precision):
    model = Model()
    seen = dtypes(model)
    keep_in_fp32(model, ["blocks.1"], CPU)
    forward = PrecisionForward(model, CPU, precision)
    forward.compute_loss(lambda f, x: f(x).mean(), torch.randn(2, 4)).backward()
    forward.method("encode", torch.randn(2, 4))
    assert seen.pop("blocks.1.linear") == {torch.float32}
    assert set.union(*seen.values()) == {precision.compute}
    exact = Model()
    exact.load_state_dict(model.state_dict())
    x = torch.randn(2, 4)
    torch.testing.assert_close(forward(x), exact(x), rtol=0.05, atol=0.05)


def test_arguments_by_name_and_nested_ones_arrive_in_float32():
    class Takes(nn.Module):
        def forward(self, x, *, others):
            return (x.dtype, others["a"][0].dtype, others["b"])

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.takes, self.linear = Takes(), nn.Linear(4, 4)

        def forward(self, x):
            half = self.linear(x)
            self.object = object()
            got = self.takes(half, others={"a": [half], "b": self.object})
            return got[:2], got[2] is self.object

    model = Outer()
    keep_in_fp32(model, ["takes"], CPU)
    got = PrecisionForward(model, CPU, Precision.BF16)(torch.randn(2, 4))
    assert got == ((torch.float32, torch.float32), True)


def test_a_copy_has_modules_of_its_own():
    model = Model()
    keep_in_fp32(model, ["head"], CPU)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.head.weight.zero_()
        copied.head.bias.zero_()
    assert is_kept(copied.head)
    assert copied(torch.randn(2, 4)).abs().max() == 0.0
    assert model(torch.randn(2, 4)).abs().max() > 0.0
    assert set(copied.state_dict()) == set(Model().state_dict())


def test_keeping_again_adds_and_release_leaves_no_trace():
    model = Model()
    attributes = {name: set(vars(module)) for name, module in model.named_modules()}
    model.head.forward = own = model.head.forward
    keep_in_fp32(model, ["head"], CPU)
    keep_in_fp32(model, ["blocks.0", "head"], CPU)
    keep_in_fp32(model, [], CPU)  # a second trainer of the same model, without names
    assert names(model) == ["blocks.0", "blocks.0.norm", "blocks.0.linear", "head"]
    release(model)
    assert model.head.forward is own
    del model.head.forward
    assert {name: set(vars(module)) for name, module in model.named_modules()} == attributes


def test_the_type_of_the_model_and_saving_it_whole_stay(tmp_path):
    model = Model()
    keep_in_fp32(model, ["head"], CPU)
    assert type(model.head) is nn.Linear
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    x = torch.randn(2, 4)
    torch.testing.assert_close(loaded(x), model(x))


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_recomputation_in_the_backward_pass_is_in_fp32_too(precision, reentrant):
    def trained(reentrant):
        torch.manual_seed(0)
        model = Model(reentrant=reentrant)
        seen = dtypes(model)
        trainer = FP16Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
            FP16TrainingConfig(precision=precision, cpu_half=True, keep_fp32=["blocks.1"]),
        )
        x = torch.randn(8, 4).requires_grad_()
        for _ in range(3):
            trainer.train_batch(x, lambda f, b: f(b).square().mean())
        assert seen["blocks.1.linear"] == {torch.float32}
        assert seen["blocks.2.linear"] == {Precision(precision).compute}
        return [p.detach() for p in model.parameters()]

    torch.testing.assert_close(trained(reentrant), trained(None))


def test_live_flips_leave_it_in_fp32():
    model = Model()
    seen = dtypes(model)
    trainer = FP16Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
        FP16TrainingConfig(precision="fp16", cpu_half=True, keep_fp32=["head"]),
    )
    for name in ("fp16", "fp32", "bf16"):
        trainer.set_precision(PrecisionState(requested=name, effective=name, reason="default"))
        trainer.train_batch(torch.randn(8, 4), lambda f, b: f(b).square().mean())
    assert seen["head"] == {torch.float32}
    assert seen["blocks.0.linear"] == {torch.float16, torch.float32, torch.bfloat16}
    assert trainer.get_stats()["applied_steps"] == 3


def test_a_model_held_in_fp16_keeps_the_module_in_float32():
    model = Model()
    trainer = FP16Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, fused=True),
        FP16TrainingConfig(precision="fp16", cpu_half=True, keep_fp32=["head", "*.norm"]),
    )
    trainer.cast_model_to_fp16()
    assert model.head.weight.dtype == model.blocks[0].norm.weight.dtype == torch.float32
    assert model.blocks[0].linear.weight.dtype == torch.float16
    trainer.train_batch(torch.randn(8, 4), lambda f, b: f(b).square().mean())
    assert trainer.get_stats()["applied_steps"] == 1


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's
@pytest.mark.parametrize("how", ["whole", "part", "method"])
def test_under_torch_compile(how):
    torch.manual_seed(0)
    model = Model()
    plain = copy.deepcopy(model)
    keep_in_fp32(plain, ["blocks.1"], CPU)
    compiled = model
    if how == "whole":
        compiled = torch.compile(model, backend="aot_eager")
    elif how == "part":
        model.blocks[1] = torch.compile(model.blocks[1], backend="aot_eager")
    else:
        model.compile(backend="aot_eager")
    keep_in_fp32(compiled, ["blocks.1"], CPU)
    x = torch.randn(8, 4)
    for precision in (Precision.BF16, Precision.FP32, Precision.FP16):
        results = []
        for each in (plain, compiled):
            each.zero_grad()
            forward = PrecisionForward(each, CPU, precision)
            loss = forward.compute_loss(lambda f, b: f(b).square().mean(), x)
            loss.backward()
            results.append((loss.detach(), [p.grad for p in each.parameters()]))
        torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)
    torch.compiler.reset()


@pytest.mark.parametrize("pattern", ["*", "lstm"])
def test_a_model_without_inner_modules_is_told_what_it_can_do(pattern):
    with pytest.raises(UnknownModuleError, match="train it in FP32") as error:
        keep_in_fp32(nn.LSTM(2, 2), [pattern], CPU)
    assert error.value.pattern == pattern
