"""What is done to each loop, and what should become of it.

A case raises `WrongError` if the loop goes wrong; any other error of a loop counts as wrong too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

import torch
from torch import Tensor, nn

from benchmarks.behaviours.loops import Batch, Loop, Setup

Begin: TypeAlias = Callable[[Setup], Loop]


class WrongError(Exception):
    """The loop went wrong without an error of its own."""


def good(forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """Mean squared error."""
    return nn.functional.mse_loss(forward(batch["x"]).float(), batch["y"])


def infinite_gradient(forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """A finite loss whose gradient is infinite at any scale."""
    loss = forward(batch["x"]).float().mean()
    loss.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
    return loss


def nan(forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """A loss that is NaN, and so are its gradients."""
    return forward(batch["x"]).float().mean() * math.nan


def unattached(forward: Callable[[Tensor], Tensor], batch: Batch) -> Tensor:
    """A loss that depends on no parameter."""
    del forward, batch
    return torch.ones((), requires_grad=True) * 2.0


def make_batch() -> Batch:
    """A batch of 32 rows."""
    x = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
    return {"x": x, "y": x.sum(1, keepdim=True)}


def weights(loop: Loop) -> Tensor:
    """All parameters in one row."""
    return torch.cat([p.detach().float().flatten() for p in loop.model.parameters()])


def _require(right: object, wrong: str) -> None:
    if not right:
        raise WrongError(wrong)


def collapsed_scale(begin: Begin) -> None:
    """150 overflows in a row, then a good step: the weights stay finite and move."""
    loop, batch = begin(Setup(optimizer="AdamW", max_norm=None)), make_batch()
    before = weights(loop)
    loop.epoch([batch] * 150, infinite_gradient)
    loop.epoch([batch], good)
    _require(weights(loop).isfinite().all(), "the weights are NaN: 1 / scale overflowed")
    _require(not torch.equal(weights(loop), before), "it skips for ever")


def nan_loss(begin: Begin) -> None:
    """Three losses of NaN: the loss scale, whose fault it was not, stays."""
    loop = begin(Setup(max_norm=None))
    loop.epoch([make_batch()] * 3, nan)
    _require(loop.scale() == 65536.0, f"the scale fell to {loop.scale():g}")


def nan_loss_in_fp32(begin: Begin) -> None:
    """One loss of NaN in FP32: the weights stay finite."""
    loop = begin(Setup(precision="fp32", max_norm=None))
    loop.epoch([make_batch()], nan)
    _require(weights(loop).isfinite().all(), "the weights are NaN")


def clip_at_overflow(begin: Begin) -> None:
    """An overflow while gradients are clipped: the step is skipped, the training continues."""
    loop, batch = begin(Setup(optimizer="AdamW")), make_batch()
    before = weights(loop)
    loop.epoch([batch], infinite_gradient)
    _require(torch.equal(weights(loop), before), "the weights changed")
    loop.epoch([batch], good)


def clip_with_fused_optimizer(begin: Begin) -> None:
    """Clipping with a fused optimizer works."""
    loop = begin(Setup(scale=64.0))
    before = weights(loop)
    loop.epoch([make_batch()], good)
    _require(not torch.equal(weights(loop), before), "the weights stayed")


def schedule_after_skipped_steps(begin: Begin) -> None:
    """One good step and two overflows with a fused optimizer: the learning rate halves once."""
    loop, batch = begin(Setup(scale=64.0, max_norm=None)), make_batch()
    loop.epoch([batch], good)
    loop.epoch([batch] * 2, infinite_gradient)
    _require(loop.rate() == 5e-3, f"the rate is {loop.rate():g}: skipped steps counted")


def step_without_gradients(begin: Begin) -> None:
    """A loss that reaches no parameter: the step changes nothing, the training continues."""
    loop, batch = begin(Setup(scale=64.0, max_norm=None)), make_batch()
    loop.epoch([batch], unattached)
    loop.epoch([batch], good)


def last_window(begin: Begin) -> None:
    """An epoch of two thirds of a window: its step averages the two micro-batches it has."""
    setup = Setup(precision="fp32", optimizer="fused SGD", max_norm=None)
    batch, moved = make_batch(), []
    for accumulate, count in ((1, 1), (3, 2)):
        loop = begin(replace(setup, accumulate=accumulate))
        before = weights(loop)
        loop.epoch([batch] * count, good)
        moved.append((weights(loop) - before).norm().item())
    share = moved[1] / moved[0]
    _require(abs(share - 1.0) < 1e-3, f"its step is {share:.2f} of the right one")


def half_parameters(begin: Begin) -> None:
    """Parameters of float16 are refused before anything is trained."""
    try:
        loop = begin(Setup(half=True, scale=8.0))
    except ValueError:
        return
    try:
        loop.epoch([make_batch()], good)
    except (ValueError, NotImplementedError) as error:
        raise WrongError(f"refused in the first step: {error}") from error
    raise WrongError("trained, with updates rounded away")


def fp32_state_into_fp16(begin: Begin) -> None:
    """A checkpoint of an FP32 training continues in FP16."""
    setup, batch = Setup(optimizer="AdamW", scale=64.0, max_norm=None), make_batch()
    with TemporaryDirectory() as folder:
        whole = begin(replace(setup, precision="fp32"))
        whole.epoch([batch], good)
        saved = weights(whole)
        whole.save(Path(folder) / "saved")
        half = begin(setup)
        half.load(Path(folder) / "saved")
        _require(torch.equal(weights(half), saved), "the weights differ")
        half.epoch([batch], good)


def scale_in_the_checkpoint(begin: Begin) -> None:
    """A checkpoint holds the loss scale."""
    setup, batch = Setup(optimizer="AdamW", scale=8192.0, max_norm=None), make_batch()
    with TemporaryDirectory() as folder:
        first = begin(setup)
        first.epoch([batch], good)
        first.save(Path(folder) / "saved")
        again = begin(replace(setup, scale=65536.0))
        again.load(Path(folder) / "saved")
        _require(again.scale() == 8192.0, f"it resumes with {again.scale():g} instead of 8192")


CASES: tuple[Callable[[Begin], None], ...] = (
    collapsed_scale,
    nan_loss,
    nan_loss_in_fp32,
    clip_at_overflow,
    clip_with_fused_optimizer,
    schedule_after_skipped_steps,
    step_without_gradients,
    last_window,
    half_parameters,
    fp32_state_into_fp16,
    scale_in_the_checkpoint,
)


def wrong_in(case: Callable[[Begin], None], begin: Begin) -> str:
    """What goes wrong in *case*, in one line; empty if nothing does."""
    try:
        case(begin)
    except WrongError as error:
        return str(error)
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        return f"{type(error).__name__}: {first[:100]}"
    return ""
