"""Predictive distributions: built from raw network outputs, mixed, calibrated, scored.

Independent of how a model is fitted.
"""

from infrastructure.world_model.distributions.calibration import Calibration
from infrastructure.world_model.distributions.predictive import (
    BlendWeights,
    BoxDistribution,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
    base_rate_distributions,
    blend,
    predictive_distributions,
    shrink_to_base_rate,
)

__all__ = [
    "BlendWeights",
    "BoxDistribution",
    "Calibration",
    "DiscreteDistribution",
    "TargetDistribution",
    "TargetDistributions",
    "base_rate_distributions",
    "blend",
    "predictive_distributions",
    "shrink_to_base_rate",
]
