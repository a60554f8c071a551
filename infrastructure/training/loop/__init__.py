"""The training loop: epochs, step boundary, statistics, divergence, held-out evaluation."""

from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.options import LoopOptions, TrainingResult
from infrastructure.training.loop.train import take_steps, train, training_steps
from infrastructure.training.loop.training_loop import StepRequest, Steps, TrainingLoop

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
