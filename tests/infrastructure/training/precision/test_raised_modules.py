"""Modules raised to FP32 and lowered in a running training are as if they had been kept."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.precision import UnknownModuleError
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.precision.keep_fp32 import is_kept
from tests.infrastructure.training.cuda_graphs.test_graphed_trainer import everything, graphed

WRAPPINGS = ("eager", "compiled", "graphed")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.trunk(x)))


def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(forward(batch["x"]), batch["x"].sum(1, keepdim=True))


def batches(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"x": torch.randn(16, 8, generator=generator)} for _ in range(count)]


def wish(*modules: str, precision: Any = "fp16") -> PrecisionState:
    return PrecisionState(requested="fp16", effective=precision, reason="default", modules=modules)


class Run:
    """A trainer in one of the wrappings, and its steps."""

    def __init__(self, wrapping: str, *keep_fp32: str) -> None:
        torch.manual_seed(0)
        model = Network()
        self.trainer = FP16Trainer(
            model,
            torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
            FP16TrainingConfig(cpu_half=True, keep_fp32=keep_fp32, growth_interval=4),
            wish=wish(),
            compiled=CompiledCalls(backend="aot_eager") if wrapping == "compiled" else None,
        )
        self.stepper = graphed(self.trainer)[0] if wrapping == "graphed" else self.trainer

    def steps(self, given: list[dict[str, Tensor]]) -> Run:
        for batch in given:
            self.stepper.train_batch(batch, loss)
        return self

    def assert_equals(self, other: Run) -> None:
        torch.testing.assert_close(
            everything(self.trainer), everything(other.trainer), rtol=0, atol=0
        )
        assert self.trainer.get_stats() == other.trainer.get_stats()


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_raising_and_lowering_equal_runs_begun_with_these_modules(wrapping: str) -> None:
    given = batches(24)
    run = Run(wrapping)
    parts = [((), given[:8]), (("trunk.2", "norm"), given[8:16]), (("head",), given[16:])]
    for modules, part in parts:
        before = copy.deepcopy(run.trainer.state_dict())
        run.trainer.set_precision(wish(*modules))
        begun = Run(wrapping, *modules)
        begun.trainer.load_state_dict(before)
        run.steps(part).assert_equals(begun.steps(part))
    assert run.trainer.precision_state.modules == ("head",)
    run.trainer.set_precision(wish())
    assert not any(is_kept(module) for module in run.trainer.model.modules())


def test_fp32_for_all_lowers_every_module_and_kept_ones_stay() -> None:
    run = Run("eager", "norm")
    run.trainer.set_precision(wish("trunk", "norm"))
    state = run.trainer.set_precision(wish("trunk", precision="fp32"))
    assert state.modules == ()
    kept = [name for name, module in run.trainer.model.named_modules() if is_kept(module)]
    assert kept == ["norm"]


def test_an_unknown_module_changes_nothing() -> None:
    run = Run("eager")
    run.trainer.set_precision(wish("trunk"))
    with pytest.raises(UnknownModuleError, match="trunks"):
        run.trainer.set_precision(wish("trunks"))
    assert run.trainer.precision_state.modules == ("trunk",)
    assert is_kept(run.trainer.model.get_submodule("trunk.0"))


def test_a_change_inside_an_accumulation_window_is_refused() -> None:
    model = Network()
    config = FP16TrainingConfig(cpu_half=True, accumulate=2)
    trainer = FP16Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), config, wish=wish())
    trainer.train_batch(batches(1)[0], loss)
    with pytest.raises(RuntimeError, match="only between optimizer steps"):
        trainer.set_precision(wish("trunk"))


@pytest.mark.parametrize("wrapping", WRAPPINGS)
def test_the_other_half_type_trains_what_fp16_cannot_hold_as_if_begun_so(wrapping: str) -> None:
    def far_loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(forward(1e6 * batch["x"]), batch["x"].sum(1, keepdim=True))

    bf16 = PrecisionState(requested="fp16", effective="bf16", reason="guard")
    live, begun, given = Run(wrapping), Run(wrapping), batches(30)
    untrained = copy.deepcopy(live.trainer.model.state_dict())
    for batch in given[:5]:
        live.stepper.train_batch(batch, far_loss)
    assert live.trainer.get_stats()["applied_steps"] == 0
    torch.testing.assert_close(live.trainer.model.state_dict(), untrained, rtol=0, atol=0)
    for run in (live, begun):
        assert run.trainer.set_precision(bf16) == bf16
    begun.trainer.load_state_dict(copy.deepcopy(live.trainer.state_dict()))
    for batch in given[5:]:
        for run in (live, begun):
            run.stepper.train_batch(batch, far_loss)
    live.assert_equals(begun)
    stats = live.trainer.get_stats()
    assert (stats["applied_steps"], stats["current_scale"]) == (25, 1.0)
