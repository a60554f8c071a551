"""A trained world model: encoder, networks, blend and calibration, chosen on held-out groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch.nn import Module

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.features import Features
from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.calibration import Calibration
from infrastructure.world_model.linear_fit import fit_linear
from infrastructure.world_model.network import LinearNetwork
from infrastructure.world_model.outlook import (
    DiscreteOutlook,
    Outlook,
    base_outlook,
    blend,
    doubt,
    outcomes_of,
    outlook_of,
)
from infrastructure.world_model.policy_shift import check_shift
from infrastructure.world_model.scoring import decision_loss, success_label
from infrastructure.world_model.training_data import TrainingData

Family = Literal["linear", "ensemble", "blend"]

_BLEND_WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, kw_only=True, slots=True)
class FittedModel:
    """Predicts in one way, whatever family it is: a mix of two outlooks, then calibration.

    Attributes:
        encoder: The encoder the networks were trained with.
        codec: The targets the networks were trained on.
        ensemble: On the CPU, FP32, in evaluation mode.
        linear: The baseline.
        ensemble_weight: 0 is the linear model alone, 1 the ensemble alone.
        calibration: Fitted on the calibration groups.
        caution: Why its probabilities may be wrong under another policy than the one that
            collected the calibration groups; empty if nothing speaks against it.
    """

    encoder: FeatureEncoder
    codec: TargetCodec
    ensemble: Module
    linear: LinearNetwork
    ensemble_weight: float
    calibration: Calibration
    caution: str = ""

    @property
    def spec(self) -> TransitionSpec:
        """What goes in and what is predicted."""
        return self.codec.spec

    @property
    def family(self) -> Family:
        """Which of the three this is."""
        if self.ensemble_weight in (0.0, 1.0):
            return "ensemble" if self.ensemble_weight else "linear"
        return "blend"

    @torch.no_grad()
    def outlook(self, features: Features) -> Outlook:
        """What is expected of each target, calibrated; disagreement is always the ensemble's.

        Of inputs far outside what was seen hardly more than the base rate: see `doubt`.
        """
        inputs, rows = features.inputs(), len(features)
        ensemble = outlook_of(self.ensemble(inputs), self.codec, rows)
        linear = outlook_of(self.linear(inputs), self.codec, rows)
        mixed = blend(ensemble, linear, self.ensemble_weight)
        calibrated = self.calibration.apply(mixed, self.codec)
        return doubt(calibrated, base_outlook(self.codec, rows), features.outside)

    def recalibrated(self, transitions: Sequence[Transition]) -> FittedModel:
        """The same model, calibrated on *transitions*: what a policy chose, of unseen groups.

        Probabilities that are right over all actions are not right over those that a ranking
        picks, since it picks where the model errs in their favour.
        """
        raw = replace(self, calibration=Calibration(temperatures={}, scales={}))
        outcomes = outcomes_of(self.codec, transitions)
        calibration = Calibration.fit(raw.expect(transitions), outcomes, self.codec)
        model = replace(raw, calibration=calibration)
        return replace(
            model, caution=caution_of(model.expect(transitions), transitions, self.codec)
        )

    def expect(self, transitions: Sequence[Transition]) -> Outlook:
        """`outlook` of recorded transitions, encoded from observation and action alone."""
        observations = [transition.observation for transition in transitions]
        actions = [transition.action for transition in transitions]
        return self.outlook(self.encoder.encode(observations, actions))


def fit_candidates(
    data: TrainingData, ensemble: Module, linear: LinearNetwork | None = None
) -> dict[Family, FittedModel]:
    """Fit the linear baseline, the blend's weight and each family's calibration.

    The weight and the calibrations come from the calibration groups; the test groups are not
    looked at.

    Args:
        data: See `TrainingData`.
        ensemble: Trained; is moved to the CPU.
        linear: Fitted on the same data before; fitted here by default.
    """
    ensemble, part = ensemble.cpu().eval(), data.calibration
    linear = linear or fit_linear(data)
    inputs, rows = part.features.inputs(), len(part.features)
    with torch.no_grad():
        first = outlook_of(ensemble(inputs), data.codec, rows)
        second = outlook_of(linear(inputs), data.codec, rows)

    def fit(weight: float) -> tuple[float, FittedModel]:
        raw = blend(first, second, weight)
        calibration = Calibration.fit(raw, part.outcomes, data.codec)
        model = FittedModel(
            encoder=data.encoder,
            codec=data.codec,
            ensemble=ensemble,
            linear=linear,
            ensemble_weight=weight,
            calibration=calibration,
        )
        calibrated = calibration.apply(raw, data.codec)
        model = replace(model, caution=caution_of(calibrated, part.transitions, data.codec))
        return decision_loss(calibrated, part, data.codec), model

    _, blended = min(map(fit, _BLEND_WEIGHTS), key=lambda fitted: fitted[0])
    return {"linear": fit(0.0)[1], "ensemble": fit(1.0)[1], "blend": blended}


def caution_of(outlook: Outlook, transitions: Sequence[Transition], codec: TargetCodec) -> str:
    """See `FittedModel.caution`; of models without a success label nothing is known."""
    success = success_label(codec)
    if success is None:
        return ""
    name, label = success
    expected = outlook[name]
    if not isinstance(expected, DiscreteOutlook):
        return ""
    happened_N = outcomes_of(codec, transitions)[name] == label
    return check_shift(expected.probabilities[:, label], happened_N, transitions).caution


def calibration_loss(model: FittedModel, data: TrainingData) -> float:
    """`decision_loss` on the calibration groups: what a candidate is chosen by."""
    part = data.calibration
    return decision_loss(model.outlook(part.features), part, data.codec)
