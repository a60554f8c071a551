"""What it costs to restore the buffers of skipped steps: a perceptron with batch normalisation."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn

from benchmarks.measuring.spread import Spread
from benchmarks.measuring.timing import interleave, seconds_of
from benchmarks.step.loops import Setup, adamw, trainer_config
from benchmarks.step.models import SIZES, build_batches, build_model
from benchmarks.step.results import Figure
from infrastructure.training import FP16Trainer
from infrastructure.training.buffer_restore import BufferRestore

_AT_MOST = 1.03
_WARM_UP_ROUNDS = 2


def compare_buffer_restore(size: str, device: torch.device, *, rounds: int, seed: int) -> Figure:
    """Divide the time of a step that restores buffers by that of one that leaves them, in FP32.

    Args:
        size: Name of a size; each hidden layer is followed by a batch normalisation.
        device: Device to compute on.
        rounds: Rounds of each, interleaved.
        seed: Seed of weights, batches and orders.
    """
    blocks = {
        name: _steps(size, device, seed, restores=name == "restored")
        for name in ("restored", "left")
    }
    costs = interleave(blocks, _WARM_UP_ROUNDS + rounds, seed)[_WARM_UP_ROUNDS:]
    return Figure(
        what=f"{size} with batch normalisation, FP32: step ÷ without restoring buffers",
        spread=Spread.of([cost["restored"] / cost["left"] for cost in costs]),
        at_most=_AT_MOST,
    )


def normalised(model: nn.Module) -> nn.Module:
    """*model* with a batch normalisation before each activation."""
    layers: list[nn.Module] = []
    for layer in model.children():
        if isinstance(layer, nn.SiLU):
            layers.append(nn.LazyBatchNorm1d())
        layers.append(layer)
    return nn.Sequential(*layers)


def _steps(size: str, device: torch.device, seed: int, *, restores: bool) -> Callable[[], float]:
    model = normalised(build_model(SIZES[size], device, seed)).to(device)
    with torch.no_grad():
        model(build_batches(SIZES[size], device, seed)[0].x)  # gives the normalisations their width
    setup = Setup(model=model, device=device, precision="fp32")
    trainer = FP16Trainer(model, adamw(model), trainer_config(setup))
    if not restores:
        trainer._buffers = BufferRestore(nn.Module(), device)  # no option does it
    batches = cycle(build_batches(SIZES[size], device, seed))

    def block() -> float:
        def steps() -> None:
            for _ in range(SIZES[size].cpu_steps):
                batch = next(batches)
                trainer.train_batch(
                    batch, lambda forward, given: nn.functional.mse_loss(forward(given.x), given.y)
                )

        return seconds_of(steps, device)

    return block
