"""The training loop: epochs, step boundary, statistics, divergence, held-out evaluation."""

from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.train import (
    LoopOptions,
    StepRequest,
    Steps,
    TrainingLoop,
    TrainingResult,
    take_steps,
    train,
    training_steps,
)

__all__ = [
    "LoopOptions",
    "StepRequest",
    "Steps",
    "TrainingDivergedError",
    "TrainingLoop",
    "TrainingResult",
    "take_steps",
    "train",
    "training_steps",
]
