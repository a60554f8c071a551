"""Several trainers over one model, one for each part of a job."""

from infrastructure.training.parts.parts_trainer import PartsTrainer
from infrastructure.training.parts.trainer import Trainer, make_trainer, trainers_of, updates_done

__all__ = ["PartsTrainer", "Trainer", "make_trainer", "trainers_of", "updates_done"]
