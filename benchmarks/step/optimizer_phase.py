"""The optimizer phase alone: from scaled gradients to updated parameters, without a backward pass.

The loss depends on one scalar that is not a parameter, and its backward pass sets the gradients of
the model. So each loop is driven through its public calls, and its backward pass costs almost
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from benchmarks.measuring.spread import Spread
from benchmarks.measuring.timing import interleave, seconds_of
from benchmarks.step.loops import (
    LOSS_SCALE,
    Requested,
    Setup,
    adamw,
    textbook_of,
    trainer_config,
)
from benchmarks.step.models import SIZES, build_model
from benchmarks.step.results import Figure
from infrastructure.training import FP16Trainer

_SIZE = SIZES["medium"]
_AT_MOST = 0.80
_WARM_UP_ROUNDS = 2


def compare_optimizer_phases(
    device: torch.device, precision: Requested, *, rounds: int, seed: int
) -> Figure:
    """Divide our time by that of unscale, clip and fused step, on 3.3 million parameters.

    Args:
        device: Device to compute on.
        precision: Precision; ``fp16`` scales and unscales, and has a limit. There are no products.
        rounds: Rounds of each, interleaved.
        seed: Seed of gradients and orders.
    """
    blocks = {
        "ours": _phase(_ours, device, precision, seed),
        "textbook": _phase(_textbook, device, precision, seed),
    }
    costs = interleave(blocks, _WARM_UP_ROUNDS + rounds, seed)[_WARM_UP_ROUNDS:]
    count = sum(p.numel() for p in build_model(_SIZE, torch.device("cpu"), seed).parameters())
    return Figure(
        what=f"optimizer phase, {count / 1e6:.1f} M parameters, {precision}: "
        "ours ÷ unscale + clip + fused step",
        spread=Spread.of([cost["ours"] / cost["textbook"] for cost in costs]),
        at_most=_AT_MOST if precision == "fp16" else None,
    )


def _phase(
    prepare: Callable[[Setup], Callable[[Tensor], None]],
    device: torch.device,
    precision: Requested,
    seed: int,
) -> Callable[[], float]:
    model = build_model(_SIZE, device, seed)
    grads = _gradients(model, seed)
    anchor = torch.zeros((), device=device, requires_grad=True)
    fresh: list[Tensor] = []
    anchor.register_hook(lambda _: set_gradients(model, fresh))
    update = prepare(Setup(model=model, device=device, precision=precision))

    def block() -> float:
        fresh[:] = [grad.clone() for grad in grads]
        return seconds_of(lambda: update(anchor * 1.0), device)

    return block


def set_gradients(model: nn.Module, grads: Sequence[Tensor]) -> None:
    """Give each parameter of *model* its gradient."""
    for parameter, grad in zip(model.parameters(), grads, strict=True):
        parameter.grad = grad


def _gradients(model: nn.Module, seed: int) -> list[Tensor]:
    """Return scaled gradients whose true norm is clipped."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(p.shape, generator=generator) * 1e-2 * LOSS_SCALE).to(p.device)
        for p in model.parameters()
    ]


def _ours(setup: Setup) -> Callable[[Tensor], None]:
    return FP16Trainer(setup.model, adamw(setup.model), trainer_config(setup)).step


def _textbook(setup: Setup) -> Callable[[Tensor], None]:
    return textbook_of(setup).update
