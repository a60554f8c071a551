"""The training loop: epochs, step boundary, statistics, divergence, held-out evaluation."""

from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.loop.options import LoopOptions, TrainingResult
from infrastructure.training.loop.prepare import prepare
from infrastructure.training.loop.run import run
from infrastructure.training.loop.train import train
from infrastructure.training.loop.training import Stepper, Training

__all__ = [
    "LoopOptions",
    "Stepper",
    "Training",
    "TrainingDivergedError",
    "TrainingEnv",
    "TrainingResult",
    "prepare",
    "run",
    "train",
]
