"""The two kinds of experiments: a PPO batch of a policy, and the loss of a world model's job."""

from infrastructure.precision_lab.experiments.policy import PolicyExperiment, PolicyTraining
from infrastructure.precision_lab.experiments.world_model import WorldModelExperiment

__all__ = ["PolicyExperiment", "PolicyTraining", "WorldModelExperiment"]
