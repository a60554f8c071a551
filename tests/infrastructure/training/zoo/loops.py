"""The loop that a textbook shows, and ours, for one specimen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils import _pytree

from benchmarks.measuring.textbook import Textbook
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from tests.infrastructure.training.zoo.specimens import MakeOptimizer, Specimen, sgd

HALF = (torch.float16, torch.bfloat16)
SCALE = 1024.0

# Largest difference of a parameter between the loops. Both compute the same half products; they
# unscale and clip in another order of operations, which costs the last places of a float32. Later
# such a difference may round the half copy of a weight to its other neighbour.
AFTER_FIRST_STEP = 5e-7
TOLERANCE = {"fp32": 2e-6, "bf16": 1e-3, "fp16": 1e-3}


@dataclass
class Trained:
    """What a training did, for comparison with another one.

    Attributes:
        states: Parameters and buffers of the model and of its running average, after each step.
        losses: One per step.
        types: Types of what the model returned, of the objects in it, and of its float tensors.
    """

    states: list[dict[str, Tensor]]
    losses: list[float]
    types: list[Any]


def types_of(value: Any) -> Any:
    """Type of *value*, the types of what it holds, and the dtypes of its tensors."""
    if isinstance(value, torch.distributions.Independent):
        return type(value), types_of(value.base_dist)
    if isinstance(value, torch.distributions.Normal):
        return type(value), value.loc.dtype, value.scale.dtype
    if isinstance(value, dict):
        return type(value), {key: types_of(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [types_of(each) for each in value]
    return value.dtype if isinstance(value, Tensor) else type(value)


def textbook(
    specimen: Specimen,
    precision: str,
    steps: int,
    make_optimizer: MakeOptimizer = sgd,
    *,
    average: bool = False,
) -> Trained:
    """The loop of torch's AMP tutorial: autocast, scale, unscale, clip, step, update."""
    torch.manual_seed(0)
    model = specimen.build().train()
    _by_hand_in_fp32(model, specimen, precision)
    optimizer = make_optimizer(list(model.parameters()))
    loop = Textbook(model, optimizer, Precision(precision).compute, scale=SCALE)
    ema = _average(model) if average else None
    states, losses, types = [], [], []

    def loss_of(forward: Callable[..., Any], batch: dict[str, Tensor]) -> Tensor:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            types.append(types_of(output))
            return output

        return specimen.loss(call, batch)

    torch.manual_seed(1)
    for number in range(steps):
        loss = loop.step(specimen.batch(number), loss_of)
        model.zero_grad()  # those that no optimizer has
        if ema is not None:
            ema.update_parameters(model)
        losses.append(loss.item())
        states.append(_state(model, ema))
    return Trained(states, losses, types)


def ours(
    specimen: Specimen,
    precision: str,
    steps: int,
    make_optimizer: MakeOptimizer = sgd,
    *,
    average: bool = False,
) -> Trained:
    """`FP16Trainer`'s loop."""
    torch.manual_seed(0)
    model = specimen.build().train()
    trainer = FP16Trainer(
        model,
        make_optimizer(list(model.parameters())),
        FP16TrainingConfig(
            precision=Precision(precision),
            cpu_half=True,
            loss_scale=SCALE,
            keep_fp32=specimen.keep_fp32,
        ),
    )
    ema = _average(model) if average else None
    states, losses, types = [], [], []

    def loss_of(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = forward(*args, **kwargs)
            types.append(types_of(output))
            return output

        return specimen.loss(call, batch)

    torch.manual_seed(1)
    for number in range(steps):
        loss = trainer.training_step(specimen.batch(number), loss_of)
        trainer.step(loss)
        if ema is not None:
            ema.update_parameters(model)
        losses.append(loss.item())
        states.append(_state(model, ema))
    return Trained(states, losses, types)


def largest_difference(first: dict[str, Tensor], second: dict[str, Tensor]) -> float:
    """Largest absolute difference of two states, which must have the same names."""
    if first.keys() != second.keys():
        raise AssertionError(f"the states have other names: {first.keys() ^ second.keys()}")
    return max(
        (value.double() - second[name].double()).abs().max().item() for name, value in first.items()
    )


def holds_half(types: Any) -> bool:
    """Whether `types_of` found a half tensor."""
    return any(each in HALF for each in _pytree.tree_leaves(types))


def _state(model: nn.Module, ema: nn.Module | None) -> dict[str, Tensor]:
    state = dict(model.state_dict())
    if ema is not None:
        state |= {f"average.{name}": value for name, value in ema.state_dict().items()}
    return {name: value.detach().clone() for name, value in state.items()}


def _average(model: nn.Module) -> AveragedModel:
    return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def _by_hand_in_fp32(model: nn.Module, specimen: Specimen, precision: str) -> None:
    """What a textbook loop must do in the model's own code for a module without a kernel."""
    for name in specimen.keep_fp32:
        module = model.get_submodule(name)

        def forward(*args: Any, _inner: Callable[..., Any] = module.forward, **kwargs: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return _inner(*args, **kwargs)

        module.forward = forward  # type: ignore[method-assign]
