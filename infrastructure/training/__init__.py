"""The precision-safe training step and everything around it."""

from infrastructure.training.config import FP16TrainingConfig
from infrastructure.training.fp16_trainer import FP16Trainer
from infrastructure.training.multi_optimizer import MultiOptimizer
from infrastructure.training.precision.precision import Precision

__all__ = ["FP16Trainer", "FP16TrainingConfig", "MultiOptimizer", "Precision"]
