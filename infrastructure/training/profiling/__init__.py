"""Profiles a training: time of its phases, extrapolated to a whole run, and cost of its step."""

from infrastructure.training.profiling.extrapolation import TrainingTimes, training_costs
from infrastructure.training.profiling.step_costs import measure_steps
from infrastructure.training.profiling.timed_training import time_training

__all__ = ["TrainingTimes", "measure_steps", "time_training", "training_costs"]
