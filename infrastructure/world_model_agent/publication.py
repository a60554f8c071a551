"""The publication gate: the best candidate, held against the base rate and the model in use."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.nn import Module

from infrastructure.world_model import ModelFileError, WorldModel
from infrastructure.world_model.artefact import BuildNetwork
from infrastructure.world_model.fitted_model import (
    Family,
    FittedModel,
    calibration_loss,
    fit_candidates,
)
from infrastructure.world_model.metrics import clustered_standard_error
from infrastructure.world_model.outlook import base_outlook
from infrastructure.world_model.scoring import PRIMARY, measure, row_nll
from infrastructure.world_model.training_data import TrainingData

CERTAINTY = 1.645
"""Standard errors by which the base rate must be beaten: one-sided 95 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Attributes:
    published: Whether the candidate should replace the model in use.
    reason: One line for the operator.
    candidate: The best of the three families.
    metrics: Of the candidate on the test groups, and what it was compared with.
    """

    published: bool
    reason: str
    candidate: FittedModel
    metrics: Mapping[str, float]


def judge(
    data: TrainingData, ensemble: Module, in_use: Path, build_network: BuildNetwork
) -> Verdict:
    """Choose the candidate on the calibration groups and judge it on the test groups.

    Args:
        data: The run's data.
        ensemble: The trained network.
        in_use: Folder of the model in use; may be empty or damaged.
        build_network: Builds the network whose weights lie there.
    """
    candidates = fit_candidates(data, ensemble)
    family = min(candidates, key=lambda name: calibration_loss(candidates[name], data))
    candidate, test = candidates[family], data.test
    nll_N = row_nll(candidate.outlook(test.features), test.outcomes, data.codec)
    base_N = row_nll(base_outlook(data.codec, len(nll_N)), test.outcomes, data.codec)
    skill = float((base_N - nll_N).mean())
    error = clustered_standard_error(base_N - nll_N, test.groups)
    metrics = _metrics(data, candidates, family) | {f"{PRIMARY}_standard_error": error}

    if not skill > CERTAINTY * error:
        reason = (
            f"the best candidate ({family}) does not beat the base rate on held-out groups: "
            f"{skill:+.4f} nats with standard error {error:.4f}"
        )
        return Verdict(published=False, reason=reason, candidate=candidate, metrics=metrics)
    gain = f"{family} beats the base rate by {skill:.4f} nats on held-out groups"
    used_nll, why_not = _nll_in_use(data, in_use, build_network)
    if used_nll is None:
        return Verdict(
            published=True, reason=f"{gain}; {why_not}", candidate=candidate, metrics=metrics
        )
    nll = float(nll_N.mean())
    metrics |= {"in_use.nll": used_nll, "in_use.nll_gain": used_nll - nll}
    compared = f"negative log-likelihood {nll:.4f} against {used_nll:.4f} of the model in use"
    better = nll < used_nll
    reason = f"{gain}; {compared}" if better else f"no better than the model in use: {compared}"
    return Verdict(published=better, reason=reason, candidate=candidate, metrics=metrics)


def _metrics(
    data: TrainingData, candidates: Mapping[Family, FittedModel], chosen: Family
) -> dict[str, float]:
    """All test metrics of the chosen candidate, and the skill of each family."""
    measured = {
        name: measure(model.outlook(data.test.features), data.test.outcomes, data.codec)
        for name, model in candidates.items()
    }
    skills = {f"{name}.{PRIMARY}": metrics[PRIMARY] for name, metrics in measured.items()}
    return measured[chosen] | skills


def _nll_in_use(
    data: TrainingData, in_use: Path, build_network: BuildNetwork
) -> tuple[float | None, str]:
    """Mean test NLL of the model in use, or None and why there is nothing to compare with."""
    try:
        model = WorldModel.load(in_use, build_network).fitted
    except FileNotFoundError:
        return None, "no model was in use"
    except ModelFileError as error:
        return None, f"the model in use is unreadable ({error})"
    if model is None or model.spec != data.spec:
        return None, "the model in use was trained for other fields"
    outlook = model.expect(data.test.transitions)
    nll = float(row_nll(outlook, data.test.outcomes, data.codec).mean())
    if not math.isfinite(nll):
        return None, "the model in use gives no finite likelihood"
    return nll, ""
