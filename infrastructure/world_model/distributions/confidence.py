"""Confidence: how far a prediction can be relied upon, in [0, 1].

Of a `Discrete` target it is the calibrated probability of the predicted label: of predictions with
confidence 0.8, about 8 in 10 are right. Of a `Box` target it is 1 minus the stated standard
deviation divided by that of the training values, at least 0, averaged over the dimensions that
vary: the share of the spread that the prediction removes. Both are multiplied by the share of the
prediction that comes from the inputs: 1, or ``1 - OOD_SHRINKAGE`` out of distribution. The members'
disagreement is already part of probabilities and standard deviations.

The confidence of a whole prediction is that of the success target, if the spec names one that
varies; else the mean over the targets that vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions.predictive import (
    OOD_SHRINKAGE,
    DiscreteDistribution,
    TargetDistribution,
    TargetDistributions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Confidence:
    """Confidence in predictions, ``[N]`` each.

    Attributes:
        by_target: Confidence in each target that varies.
        overall: Confidence in the whole prediction.
    """

    by_target: Mapping[str, Tensor]
    overall: Tensor

    @classmethod
    def of(cls, predicted: TargetDistributions, codec: TargetCodec, ood_N: Tensor) -> Confidence:
        """Compute the confidence in calibrated predictions.

        Args:
            ood_N: Whether the row is out of distribution, bool.
        """
        known_N = 1.0 - OOD_SHRINKAGE * ood_N.double()
        by_target = {
            name: known_N * _confidence(predicted[name], codec, name) for name in codec.heads
        }
        success = codec.success_label
        decisive = codec.heads if success is None else (success[0],)
        overall_N = torch.stack([by_target[name] for name in decisive]).mean(0)
        return cls(by_target=by_target, overall=overall_N)


def _confidence(distribution: TargetDistribution, codec: TargetCodec, name: str) -> Tensor:
    if isinstance(distribution, DiscreteDistribution):
        return distribution.probabilities.amax(1)
    standardiser = codec.standardisers[name]
    usual_C = torch.tensor(standardiser.scale, dtype=torch.float64)
    share_NC = (1.0 - distribution.variance.sqrt() / usual_C).clamp(0.0, 1.0)
    return standardiser.select_kept(share_NC).mean(1)
