"""Confidence: how far a prediction can be relied upon, in [0, 1].

Of a `Discrete` target it is the calibrated probability of the predicted label, which is the
probability that the prediction is right: of predictions with confidence 0.8, about 8 in 10 are. Of
a `Box` target it is 1 minus the stated standard deviation divided by that of the training values,
at least 0, averaged over the dimensions that vary: the share of the spread that the prediction
removes. The members' disagreement, values that are missing, and numbers far outside the training
data count in that probabilities and deviations contain them; nothing is taken off besides.
"""

from __future__ import annotations

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions.predictive import (
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
)


def confidence(predicted: TargetDistributions, codec: TargetCodec) -> Tensor:
    """Compute the confidence in calibrated predictions, ``[N]`` float64.

    It is that of the success target, if the spec names one that varies; else the mean over the
    targets that vary.
    """
    success = codec.success_label
    decisive = codec.heads if success is None else (success[0],)
    each_N = [_of_target(predicted[name], codec, name) for name in decisive]
    return torch.stack(each_N).mean(0)


def _of_target(distribution: TargetDistribution, codec: TargetCodec, name: str) -> Tensor:
    if isinstance(distribution, DiscreteDistribution):
        return distribution.probabilities.amax(1)
    standardiser = codec.standardisers[name]
    usual_C = torch.tensor(standardiser.scale, dtype=torch.float64)
    share_NC = (1.0 - distribution.variance.sqrt() / usual_C).clamp(0.0, 1.0)
    return standardiser.select_kept(share_NC).mean(1)
