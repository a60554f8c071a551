"""The training loop: epochs, step boundary, statistics, divergence, held-out evaluation."""

from infrastructure.training.loop.divergence import TrainingDivergedError
from infrastructure.training.loop.train import LoopOptions, TrainingResult, train

__all__ = ["LoopOptions", "TrainingDivergedError", "TrainingResult", "train"]
