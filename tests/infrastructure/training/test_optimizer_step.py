"""Optimizers as people have them, each beside torch's recipe."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn, optim

from benchmarks.measuring.textbook import Textbook
from infrastructure.training import FP16Trainer, FP16TrainingConfig, MultiOptimizer, Precision
from tests.infrastructure.training.losses import infinite_gradient

Make = Callable[[Iterable[nn.Parameter]], optim.Optimizer]

TRAINER_PAGE = Path(__file__).parents[3] / "docs/reference/trainer.md"
STEPS, OVERFLOWS = 36, {7, 8, 23}
SCALE, GROWTH_INTERVAL = 1024.0, 10


def matrices(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [p for p in parameters if p.ndim == 2]


def muon_beside(kind: Callable[..., optim.Optimizer], **settings: Any) -> Make:
    def make(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        given = list(parameters)
        rest = [p for p in given if p.ndim != 2]
        return MultiOptimizer(optim.Muon(matrices(given), lr=0.02), kind(rest, **settings))

    return make


def with_(kind: Callable[..., optim.Optimizer], **settings: Any) -> Make:
    return lambda parameters: kind(parameters, **settings)


ONE_PASS: dict[str, Make] = {
    "AdamW": with_(optim.AdamW, lr=0.01, fused=True),
    "Adam": with_(optim.Adam, lr=0.01, fused=True, amsgrad=True),
    "SGD": with_(optim.SGD, lr=0.01, momentum=0.9, fused=True),
    "Adagrad": with_(optim.Adagrad, lr=0.01, fused=True),
}
ONE_READ: dict[str, Make] = {
    "Adadelta": with_(optim.Adadelta),
    "Adafactor": with_(optim.Adafactor),
    "Adamax": with_(optim.Adamax),
    "ASGD": with_(optim.ASGD, lr=0.01),
    "Muon": lambda parameters: optim.Muon(matrices(parameters), lr=0.02),
    "NAdam": with_(optim.NAdam),
    "RAdam": with_(optim.RAdam),
    "RMSprop": with_(optim.RMSprop, momentum=0.9, centered=True),
    "Rprop": with_(optim.Rprop),
    "MultiOptimizer": muon_beside(optim.AdamW, lr=0.01, fused=True),
    "AdamWScheduleFree": with_(schedulefree.AdamWScheduleFree, lr=0.01, warmup_steps=5),
    "SGDScheduleFree": with_(schedulefree.SGDScheduleFree, lr=0.1),
    "RAdamScheduleFree": with_(schedulefree.RAdamScheduleFree, lr=0.01),
    "Lion": with_(pytorch_optimizer.Lion, lr=0.001),
    "Lookahead": lambda p: pytorch_optimizer.Lookahead(optim.AdamW(p, lr=0.01), k=3),
}
MORE = {  # other ways to build them
    "AdamW unfused": with_(optim.AdamW, lr=0.01),
    "SGD with dampening": with_(optim.SGD, lr=0.01, momentum=0.9, dampening=0.1, fused=True),
    "Muon beside AdamWScheduleFree": muon_beside(schedulefree.AdamWScheduleFree, lr=0.01),
    "Muon beside Lion": muon_beside(pytorch_optimizer.Lion, lr=0.001),
    "Lookahead of MultiOptimizer": lambda p: pytorch_optimizer.Lookahead(
        muon_beside(optim.AdamW, lr=0.01)(p)
    ),
}
ALL = {**ONE_PASS, **ONE_READ, **MORE}
CLOSURE: dict[str, Make] = {
    "LBFGS": with_(optim.LBFGS),
    "AdamWScheduleFreeClosure": with_(schedulefree.AdamWScheduleFreeClosure),
    "SAM": lambda p: pytorch_optimizer.SAM(p, optim.SGD, lr=0.01),
}


def build(make: Make, seed: int = 0) -> tuple[nn.Module, optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 16), nn.SiLU(), nn.Linear(16, 1))
    return model, make(model.parameters())


def trainer_with(make: Make, precision: str, seed: int = 0) -> FP16Trainer:
    config = FP16TrainingConfig(
        precision=Precision(precision),
        cpu_half=True,
        loss_scale=SCALE,
        growth_interval=GROWTH_INTERVAL,
        max_grad_norm=None,  # the recipe's clipping rounds in another way
    )
    return FP16Trainer(*build(make, seed), config)


def batch_of(step: int) -> dict[str, Tensor]:
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(step))
    return {"x": x, "y": x.sum(1, keepdim=True)}


def loss_at(step: int, mse: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return infinite_gradient if step in OVERFLOWS else mse


def snapshot(loop: FP16Trainer | Textbook) -> dict[str, Any]:
    state = {"model": loop.model.state_dict(), "optimizer": loop.optimizer.state_dict()}
    return copy.deepcopy(state)


def assert_same(one: Any, other: Any) -> None:
    """Equal bit for bit, whatever the structure."""
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ALL)
def test_matches_the_textbook_loop_bit_for_bit(loss_fn, name, precision):
    """FP32 has no scaler, so there the recipe is spared the batches that overflow."""
    trainer = trainer_with(ALL[name], precision)
    model, optimizer = build(ALL[name])
    if hasattr(optimizer, "train"):
        optimizer.train()
    textbook = Textbook(
        model,
        optimizer,
        Precision(precision).compute,
        scale=SCALE,
        growth_interval=GROWTH_INTERVAL,
        max_norm=None,
    )
    scales, textbook_scales = [], []
    for step in range(STEPS):
        batch, loss = batch_of(step), loss_at(step, loss_fn)
        trainer.train_batch(batch, loss)
        if precision == "fp16" or step not in OVERFLOWS:
            textbook.step(batch, lambda f, b, loss=loss: loss(lambda x: f(x).float(), b))
        scales.append(trainer.get_stats()["current_scale"])
        textbook_scales.append(textbook.scaler.get_scale())
    assert scales == textbook_scales
    assert trainer.get_stats()["overflow_steps"] >= len(OVERFLOWS)
    assert_same(snapshot(trainer), snapshot(textbook))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ALL)
def test_a_skipped_step_changes_nothing(loss_fn, name, precision):
    trainer = trainer_with(ALL[name], precision)
    for step in range(5):
        trainer.train_batch(batch_of(step), loss_fn)
    before = snapshot(trainer)
    trainer.train_batch(batch_of(5), infinite_gradient)
    assert trainer.get_stats()["overflow_steps"] == 1
    assert_same(snapshot(trainer), before)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ALL)
def test_resumes_bit_for_bit(loss_fn, tmp_path, name, precision):
    def train(trainer, first, last):
        for step in range(first, last):
            trainer.train_batch(batch_of(step), loss_at(step, loss_fn))

    undisturbed = trainer_with(ALL[name], precision)
    train(undisturbed, 0, 20)
    undisturbed.save_checkpoint(tmp_path / "a.pt")
    train(undisturbed, 20, STEPS)

    resumed = trainer_with(ALL[name], precision, seed=1)
    train(resumed, 0, 2)  # its own state is replaced
    resumed.load_checkpoint(tmp_path / "a.pt")
    train(resumed, 20, STEPS)
    assert resumed.get_stats() == undisturbed.get_stats()
    assert_same(snapshot(resumed), snapshot(undisturbed))


@pytest.mark.parametrize("name", CLOSURE)
def test_an_optimizer_that_needs_a_closure_is_refused(loss_fn, name):
    """By its signature, or in the first step where that does not show it."""
    with pytest.raises(ValueError, match=rf"^{name} computes the loss several .*: choose an opti"):
        trainer_with(CLOSURE[name], "fp32").train_batch(batch_of(0), loss_fn)


def test_an_optimizer_of_sparse_gradients_is_refused():
    with pytest.raises(ValueError, match=r"SparseAdam needs sparse gradients.*sparse=False, and"):
        trainer_with(optim.SparseAdam, "fp32")


def test_a_refused_member_is_named():
    with pytest.raises(ValueError, match=r"^LBFGS computes the loss several times"):
        trainer_with(lambda p: MultiOptimizer(optim.LBFGS(p)), "fp32")


def test_another_class_than_torchs_is_refused():
    """Its state_dict() lacks whether the weights are the averaged ones."""
    with pytest.raises(TypeError, match=r"must be a torch\.optim\.Optimizer, got ScheduleFreeWr"):
        trainer_with(lambda p: schedulefree.ScheduleFreeWrapper(optim.RMSprop(p)), "fp32")


def test_an_error_of_the_optimizer_itself_stays_as_it_is(loss_fn):
    class Failing(optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError("of its author")

    with pytest.raises(ZeroDivisionError, match="of its author"):
        trainer_with(Failing, "fp32").train_batch(batch_of(0), loss_fn)


def test_a_state_of_another_form_is_told():
    plain, wrapping = (trainer_with(ALL[name], "fp32") for name in ("AdamW", "Lookahead"))
    with pytest.raises(ValueError, match="an optimizer without lookahead_state and base_optimizer"):
        wrapping.load_state_dict(plain.state_dict())
    with pytest.raises(ValueError, match="an optimizer without state and param_groups"):
        plain.load_state_dict(wrapping.state_dict())


def test_a_wrapped_optimizer_cannot_follow_the_cast_of_the_model():
    with pytest.raises(RuntimeError, match=r"Lookahead wraps AdamW, whose state cannot move"):
        trainer_with(ALL["Lookahead"], "fp16").cast_model_to_fp16()


def test_the_reference_tells_how_each_optimizer_steps(loss_fn, read_counter):
    """The table of `docs/reference/trainer.md` beside what happens, for all of torch.optim."""
    outcomes: dict[str, set[str]] = {}
    for row in re.findall(r"^\| (.*`.*) \| (.*) \|$", TRAINER_PAGE.read_text(), re.MULTILINE):
        outcomes.setdefault(row[1].split(":")[0], set()).update(re.findall(r"`(\w+)`", row[0]))
    measured: dict[str, set[str]] = {"one pass, no read": set(), "one read": set()}
    for name, make in {**ONE_PASS, **ONE_READ}.items():
        trainer = trainer_with(make, "fp16")
        trainer.train_batch(batch_of(0), loss_fn)
        with read_counter() as counter:
            trainer.train_batch(batch_of(1), loss_fn)
        fused = trainer.fused_step_unavailable_reason is None
        assert fused == (counter.reads == 0)
        measured["one pass, no read" if fused else "one read"].add(name)
    measured["refused"] = {*CLOSURE, "SparseAdam"}
    assert {outcome: outcomes.get(outcome) for outcome in measured} == measured
    of_torch = {
        name
        for name, value in vars(optim).items()
        if inspect.isclass(value) and issubclass(value, optim.Optimizer)
    } - {"Optimizer"}
    assert of_torch <= set().union(*measured.values())
