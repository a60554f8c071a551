"""The publication gate: compares the candidate with the base rate and the published model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.nn import Module

from infrastructure.world_model import ModelFileError, WorldModel
from infrastructure.world_model.distributions.metrics import clustered_standard_error
from infrastructure.world_model.fitting import (
    FittedModel,
    TrainingData,
    fit_candidates,
    predict_all,
    select_family,
)
from infrastructure.world_model.fitting.scoring import PRIMARY, base_rate_scores, measure, row_nll
from infrastructure.world_model.model_files import BuildNetwork

Z_95_ONE_SIDED = 1.645
"""Standard errors by which the candidate must beat the base rate: one-sided 95 % confidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GateDecision:
    """Decision of the gate.

    Attributes:
        published: Whether the candidate replaces the published model.
        reason: Explanation in one line, for the operator.
        candidate: Best of the three families.
        metrics: Metrics of the candidate on the test groups, and those it was compared with.
    """

    published: bool
    reason: str
    candidate: FittedModel
    metrics: Mapping[str, float]


def gate_publication(
    data: TrainingData, ensemble: Module, in_use: Path, build_network: BuildNetwork
) -> GateDecision:
    """Select the candidate on the calibration groups and test it on the test groups.

    Args:
        in_use: Folder of the published model; may be empty or damaged.
        build_network: Function that builds the network whose weights are saved there.
    """
    candidates = fit_candidates(data, ensemble)
    family = select_family(candidates, data)
    candidate, test = candidates[family], data.test
    predicted = predict_all(candidates, test.features)
    base = base_rate_scores(test.outcomes, data.codec)
    nll_N, base_N = row_nll(predicted[family], test.outcomes, data.codec), base.rows
    skill = float((base_N - nll_N).mean())
    error = clustered_standard_error(base_N - nll_N, test.groups)
    measured = {
        name: measure(each, test.outcomes, data.codec, base) for name, each in predicted.items()
    }
    skills = {f"{name}.{PRIMARY}": metrics[PRIMARY] for name, metrics in measured.items()}
    metrics = {**measured[family], **skills, f"{PRIMARY}_standard_error": error}

    if not skill > Z_95_ONE_SIDED * error:
        reason = (
            f"the best candidate ({family}) does not beat the base rate on held-out groups: "
            f"{skill:+.4f} nats with standard error {error:.4f}"
        )
        return GateDecision(published=False, reason=reason, candidate=candidate, metrics=metrics)
    gain = f"{family} beats the base rate by {skill:.4f} nats on held-out groups"
    used_nll, problem = _nll_in_use(data, in_use, build_network)
    if used_nll is None:
        return GateDecision(
            published=True, reason=f"{gain}; {problem}", candidate=candidate, metrics=metrics
        )
    nll = float(nll_N.mean())
    metrics |= {"in_use.nll": used_nll, "in_use.nll_gain": used_nll - nll}
    compared = f"negative log-likelihood {nll:.4f} against {used_nll:.4f} of the model in use"
    better = nll < used_nll
    reason = f"{gain}; {compared}" if better else f"not better than the model in use: {compared}"
    return GateDecision(published=better, reason=reason, candidate=candidate, metrics=metrics)


def _nll_in_use(
    data: TrainingData, in_use: Path, build_network: BuildNetwork
) -> tuple[float | None, str]:
    """Return the mean test NLL of the published model, or None and the reason why it is missing."""
    try:
        model = WorldModel.load(in_use, build_network).fitted_model
    except FileNotFoundError:
        return None, "no model was in use"
    except ModelFileError as error:
        return None, f"the model in use is unreadable ({error})"
    if model is None or model.spec != data.spec:
        return None, "the model in use was trained for other fields"
    predicted = model.predict_transitions(data.test.transitions)
    nll = float(row_nll(predicted, data.test.outcomes, data.codec).mean())
    if not math.isfinite(nll):
        return None, "the likelihood of the model in use is not finite"
    return nll, ""
