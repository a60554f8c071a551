"""Recorded transitions as tensors: inputs, targets, and the statistics that both need.

Fitted on training groups only, and saved with the model as JSON.
"""

from infrastructure.trajectories.encoding.encoder import FeatureEncoder
from infrastructure.trajectories.encoding.features import Features, Tokens
from infrastructure.trajectories.encoding.learned import Learned
from infrastructure.trajectories.encoding.standardiser import Standardiser
from infrastructure.trajectories.encoding.targets import Outcomes, TargetCodec

__all__ = [
    "FeatureEncoder",
    "Features",
    "Learned",
    "Outcomes",
    "Standardiser",
    "TargetCodec",
    "Tokens",
]
