"""A fitted world model: encoder, networks, blend and calibration; and how the best is selected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder, Features, TargetCodec
from infrastructure.world_model.distributions import (
    Calibration,
    TargetDistributions,
    base_rate_distributions,
    blend,
    predictive_distributions,
    shrink_to_base_rate,
)
from infrastructure.world_model.distributions.policy_shift import policy_shift_warning
from infrastructure.world_model.fitting.linear_fit import fit_linear
from infrastructure.world_model.fitting.scoring import selection_loss
from infrastructure.world_model.fitting.training_data import TrainingData
from infrastructure.world_model.networks import LinearNetwork

Family = Literal["linear", "ensemble", "blend"]

_BLEND_WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedModel:
    """Predicts alike in all families: a blend of ensemble and linear model, then calibrated.

    Attributes:
        encoder: Encoder that the networks were trained with.
        codec: Targets that the networks were trained on.
        ensemble: Network on the CPU, FP32, in evaluation mode.
        ensemble_weight: Weight of the ensemble: 0 is the linear model alone, 1 the ensemble alone.
        calibration: Calibration fitted on the calibration groups.
        policy_shift_warning: Why probabilities may be wrong under another policy than the one
            that collected the calibration groups; empty if the check passed.
    """

    encoder: FeatureEncoder
    codec: TargetCodec
    ensemble: Module
    linear: LinearNetwork
    ensemble_weight: float
    calibration: Calibration
    policy_shift_warning: str = ""

    @property
    def spec(self) -> TransitionSpec:
        """Inputs and targets."""
        return self.codec.spec

    @property
    def family(self) -> Family:
        """Family that the ensemble weight stands for."""
        if self.ensemble_weight in (0.0, 1.0):
            return "ensemble" if self.ensemble_weight else "linear"
        return "blend"

    @torch.no_grad()
    def predict(self, features: Features) -> TargetDistributions:
        """Predict each target, calibrated; the epistemic share is always the ensemble's.

        Out-of-distribution rows are shrunk to the base rate; see `shrink_to_base_rate`.
        """
        return self.combine(NetworkPredictions.of(self, features))

    def combine(self, predicted: NetworkPredictions) -> TargetDistributions:
        """Predict each target from what the two networks predict; see `predict`."""
        mixed = blend(predicted.ensemble, predicted.linear, self.ensemble_weight)
        calibrated = self.calibration.apply(mixed, self.codec)
        base = base_rate_distributions(self.codec, len(predicted.out_of_distribution))
        return shrink_to_base_rate(calibrated, base, predicted.out_of_distribution)

    def predict_transitions(self, transitions: Sequence[Transition]) -> TargetDistributions:
        """Predict the targets of recorded transitions from observation and action alone."""
        return self.predict(self.encoder.encode_transitions(transitions))

    def recalibrated(self, transitions: Sequence[Transition]) -> FittedModel:
        """Return this model calibrated on *transitions*: choices of a policy, in unseen groups.

        Probabilities that are right over all actions are wrong over those that a ranking picks,
        because a ranking picks where the model errs in favour of the action.
        """
        raw = replace(self, calibration=Calibration(temperatures={}, scales={}))
        outcomes = self.codec.outcomes(transitions)
        calibration = Calibration.fit(raw.predict_transitions(transitions), outcomes, self.codec)
        model = replace(raw, calibration=calibration)
        predicted = model.predict_transitions(transitions)
        warning = policy_shift_warning(predicted, transitions, self.codec)
        return replace(model, policy_shift_warning=warning)


@dataclass(frozen=True, kw_only=True, slots=True)
class NetworkPredictions:
    """What the networks of several candidates predict for the same rows, not calibrated.

    Attributes:
        out_of_distribution: See `Features`.
    """

    ensemble: TargetDistributions
    linear: TargetDistributions
    out_of_distribution: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, model: FittedModel, features: Features) -> NetworkPredictions:
        """Run both networks of *model* on *features*."""
        inputs, rows = features.inputs(), len(features)
        return cls(
            ensemble=predictive_distributions(model.ensemble(inputs), model.codec, rows),
            linear=predictive_distributions(model.linear(inputs), model.codec, rows),
            out_of_distribution=features.out_of_distribution,
        )


def predict_all(
    candidates: Mapping[Family, FittedModel], features: Features
) -> dict[Family, TargetDistributions]:
    """`FittedModel.predict` of each of *candidates*, which share their networks."""
    predicted = NetworkPredictions.of(next(iter(candidates.values())), features)
    return {family: model.combine(predicted) for family, model in candidates.items()}


def fit_candidates(
    data: TrainingData, ensemble: Module, linear: LinearNetwork | None = None
) -> dict[Family, FittedModel]:
    """Fit the linear baseline, the blend's weight and each family's calibration.

    Weight and calibrations are fitted on the calibration groups; the test groups are not read.

    Args:
        ensemble: Trained network; is moved to the CPU.
        linear: Linear baseline fitted on the same data; fitted here by default.
    """
    ensemble, part = ensemble.cpu().eval(), data.calibration
    linear = linear or fit_linear(data)
    inputs, rows = part.features.inputs(), len(part.features)
    with torch.no_grad():
        first = predictive_distributions(ensemble(inputs), data.codec, rows)
        second = predictive_distributions(linear(inputs), data.codec, rows)

    def fit(weight: float) -> tuple[float, FittedModel]:
        raw = blend(first, second, weight)
        calibration = Calibration.fit(raw, part.outcomes, data.codec)
        calibrated = calibration.apply(raw, data.codec)
        model = FittedModel(
            encoder=data.encoder,
            codec=data.codec,
            ensemble=ensemble,
            linear=linear,
            ensemble_weight=weight,
            calibration=calibration,
        )
        return selection_loss(calibrated, part, data.codec), model

    def check(model: FittedModel) -> FittedModel:
        raw = blend(first, second, model.ensemble_weight)
        calibrated = model.calibration.apply(raw, data.codec)
        warning = policy_shift_warning(calibrated, part.transitions, data.codec)
        return replace(model, policy_shift_warning=warning)

    _, blended = min(map(fit, _BLEND_WEIGHTS), key=lambda fitted: fitted[0])
    return {
        "linear": check(fit(0.0)[1]),
        "ensemble": check(fit(1.0)[1]),
        "blend": check(blended),
    }


def select_family(candidates: Mapping[Family, FittedModel], data: TrainingData) -> Family:
    """Return the family with the lowest `selection_loss` on the calibration groups."""
    part = data.calibration
    predicted = predict_all(candidates, part.features)
    losses = {
        name: selection_loss(prediction, part, data.codec) for name, prediction in predicted.items()
    }
    return min(candidates, key=losses.__getitem__)
