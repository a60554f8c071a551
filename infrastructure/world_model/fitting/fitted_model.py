"""A fitted world model: encoder, networks, blend and calibration; and how the best is selected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder, Features, TargetCodec
from infrastructure.world_model.distributions import (
    BlendWeights,
    Calibration,
    TargetDistribution,
    TargetDistributions,
    base_rate_distributions,
    blend,
    predictive_distributions,
    shrink_to_base_rate,
)
from infrastructure.world_model.distributions.averaging import average_rows, replace_rows
from infrastructure.world_model.distributions.cross_validation import NEEDED_ERRORS
from infrastructure.world_model.distributions.policy_shift import policy_shift_warning
from infrastructure.world_model.distributions.predictive import blend_target
from infrastructure.world_model.fitting.linear_fit import fit_linear
from infrastructure.world_model.fitting.scoring import evidence, selection_loss, target_loss
from infrastructure.world_model.fitting.training_data import TrainingData
from infrastructure.world_model.networks import LinearNetwork

Family = Literal["linear", "ensemble", "blend"]

_ENSEMBLE, _LINEAR = (1.0, 0.0), (0.0, 1.0)

_GAPS_TOGETHER = 256  # rows that are predicted together, each with all examples

_SHARES = tuple(step / 10 for step in range(11))
_WEIGHT_PRIOR_ROWS = 3.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedModel:
    """Predicts alike in all families: a blend of ensemble and linear model, then calibrated.

    Attributes:
        encoder: Encoder that the networks were trained with.
        codec: Targets that the networks were trained on.
        ensemble: Network on the CPU, FP32, in evaluation mode.
        weights: Weights of ensemble and linear model for each target; the base rate has the rest.
        calibration: Calibration fitted on the calibration groups.
        policy_shift_warning: Why probabilities may be wrong under another policy than the one
            that collected the calibration groups; empty if the check passed.
    """

    encoder: FeatureEncoder
    codec: TargetCodec
    ensemble: Module
    linear: LinearNetwork
    weights: BlendWeights
    calibration: Calibration
    policy_shift_warning: str = ""

    @property
    def spec(self) -> TransitionSpec:
        """Inputs and targets."""
        return self.codec.spec

    @property
    def family(self) -> Family:
        """Family that the weights stand for."""
        firsts, seconds = zip(*self.weights.values(), strict=True)
        if any(firsts) == any(seconds):
            return "blend"
        return "ensemble" if any(firsts) else "linear"

    @property
    def ensemble_weight(self) -> float:
        """Mean share of the ensemble among the two models: all that earlier releases read."""
        shares = [first / (first + second or 1.0) for first, second in self.weights.values()]
        return sum(shares) / len(shares)

    @torch.no_grad()
    def predict(self, features: Features) -> TargetDistributions:
        """Predict each target, calibrated.

        Out-of-distribution rows are shrunk to the base rate; see `shrink_to_base_rate`. A row that
        lacks a number or a label without explanation gets the mean of predictions with values of
        training rows that resemble it; see `Examples`.
        """
        return predict_all({self.family: self}, features)[self.family]

    def combine(self, predicted: NetworkPredictions) -> TargetDistributions:
        """Predict each target from what the two networks predict, without regard to gaps."""
        rows = predicted.out_of_distribution.shape[0]  # a constant by `len` in an exported graph
        base = base_rate_distributions(self.codec, rows)
        mixed = blend(predicted.ensemble, predicted.linear, base, self.weights)
        calibrated = self.calibration.apply(mixed, self.codec)
        return shrink_to_base_rate(calibrated, base, predicted.out_of_distribution)

    def predict_transitions(self, transitions: Sequence[Transition]) -> TargetDistributions:
        """Predict the targets of recorded transitions from observation and action alone."""
        return self.predict(self.encoder.encode_transitions(transitions))

    def recalibrated(self, transitions: Sequence[Transition]) -> FittedModel:
        """Return this model calibrated on *transitions*: choices of a policy, in unseen groups.

        Probabilities that are right over all actions are wrong over those that a ranking picks,
        because a ranking picks where the model errs in favour of the action.
        """
        raw = replace(self, calibration=Calibration())
        outcomes = self.codec.outcomes(transitions)
        groups = [transition.group for transition in transitions]
        calibration = Calibration.fit(
            raw.predict_transitions(transitions), outcomes, self.codec, groups
        )
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
    first = next(iter(candidates.values()))
    predicted = NetworkPredictions.of(first, features)
    combined = {family: model.combine(predicted) for family, model in candidates.items()}
    examples = None if features.unknown is None else first.encoder.examples
    if features.unknown is None or examples is None:
        return combined
    gaps: dict[Family, list[TargetDistributions]] = {family: [] for family in candidates}
    for weights_MR, filled in examples.fill(features, _GAPS_TOGETHER):
        predicted = NetworkPredictions.of(first, filled)
        for family, model in candidates.items():
            gaps[family].append(average_rows(model.combine(predicted), weights_MR))
    rows_M = features.unknown.any(dim=1)
    return {
        family: replace_rows(combined[family], rows_M, averaged)
        for family, averaged in gaps.items()
    }


def fit_candidates(
    data: TrainingData, ensemble: Module, linear: LinearNetwork | None = None
) -> dict[Family, FittedModel]:
    """Fit the linear baseline, the blend's weights and each family's calibration.

    Weights and calibrations are fitted on the calibration groups; the test groups are not read.
    Where a family hardly beats the base rate, that takes a share of it.

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
    base = base_rate_distributions(data.codec, rows)

    def fit(chosen: BlendWeights) -> FittedModel:
        mixed = blend(first, second, base, chosen)
        weights = {
            name: shrunk_weights(pair, evidence(mixed[name], base[name], name, part, data.codec))
            for name, pair in chosen.items()
        }
        raw = blend(first, second, base, weights)
        calibration = Calibration.fit(raw, part.outcomes, data.codec, part.groups)
        calibrated = calibration.apply(raw, data.codec)
        return FittedModel(
            encoder=data.encoder,
            codec=data.codec,
            ensemble=ensemble,
            linear=linear,
            weights=weights,
            calibration=calibration,
            policy_shift_warning=policy_shift_warning(calibrated, part.transitions, data.codec),
        )

    return {
        "linear": fit(dict.fromkeys(data.codec.heads, _LINEAR)),
        "ensemble": fit(dict.fromkeys(data.codec.heads, _ENSEMBLE)),
        "blend": fit(
            {
                name: _choose_weights(
                    partial(blend_target, first[name], second[name], base[name]), name, data
                )
                for name in data.codec.heads
            }
        ),
    }


def _choose_weights(
    mix: Callable[[tuple[float, float]], TargetDistribution], name: str, data: TrainingData
) -> tuple[float, float]:
    """Choose the weights of target *name* with the lowest `target_loss`.

    First the shares of ensemble and linear model, then that of the base rate. On few rows a prior
    favours equal shares and no base rate; see `shrunk_weights` for what is not certain.
    """
    part = data.calibration
    prior = _WEIGHT_PRIOR_ROWS / len(part.features)

    def loss(weights: tuple[float, float]) -> float:
        return target_loss(mix(weights), name, part, data.codec)

    first = min(_SHARES, key=lambda share: loss((share, 1 - share)) + prior * (share - 0.5) ** 2)
    kept = min(
        reversed(_SHARES),
        key=lambda share: loss((first * share, (1 - first) * share)) + prior * (1 - share) ** 2,
    )
    return first * kept, (1 - first) * kept


def shrunk_weights(weights: tuple[float, float], evidence: float) -> tuple[float, float]:
    """Shrink *weights* towards the base rate by a factor like James and Stein's, to a tenth.

    Nothing is left at half a standard error, which other corrections need as well, and all from
    2.3 on.

    Args:
        evidence: Gain over the base rate in standard errors.
    """
    if not evidence > NEEDED_ERRORS:  # NaN of a network that diverged, too
        return 0.0, 0.0
    share = round(1.0 - (NEEDED_ERRORS / evidence) ** 2, 1)
    return weights[0] * share, weights[1] * share


def select_family(candidates: Mapping[Family, FittedModel], data: TrainingData) -> Family:
    """Return the family with the lowest `selection_loss` on the calibration groups."""
    part = data.calibration
    predicted = predict_all(candidates, part.features)
    losses = {
        name: selection_loss(prediction, part, data.codec) for name, prediction in predicted.items()
    }
    return min(candidates, key=losses.__getitem__)
