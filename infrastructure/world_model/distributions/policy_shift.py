"""Checks whether success probabilities stay calibrated under another policy.

Held-out rows are weighted by one over the propensity of their action (inverse propensity
weighting). They then represent a policy that draws uniformly: the one farthest from any ranking.
Rows without a propensity, and decisions that could not have gone otherwise, do not count.
If the predicted frequencies are wrong there, or too few random actions were recorded to tell,
every prediction carries a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Transition
from infrastructure.decisions.intake import DECISION_KEY
from infrastructure.trajectories.encoding import TargetCodec
from infrastructure.world_model.distributions.metrics import expected_calibration_error
from infrastructure.world_model.distributions.predictive import (
    DiscreteDistribution,
    TargetDistributions,
)

MAX_WEIGHT = 1000.0
MIN_EFFECTIVE_SAMPLE_SIZE = 30.0
MAX_ECE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyShiftCheck:
    """Result of the check.

    Attributes:
        ece: Expected calibration error under a uniform policy; NaN if unknown.
        effective_sample_size: Number of unweighted rows worth as much as the weighted ones.
        warning: Why probabilities may be wrong under another policy; empty if the check passed.
    """

    ece: float
    effective_sample_size: float
    warning: str


def policy_shift_warning(
    predicted: TargetDistributions, transitions: Sequence[Transition], codec: TargetCodec
) -> str:
    """Return the warning of `check_policy_shift`; empty for models without a success label."""
    success = codec.success_label
    if success is None:
        return ""
    name, label = success
    distribution = predicted[name]
    if not isinstance(distribution, DiscreteDistribution):
        return ""
    happened_N = codec.label_positions(transitions, name) == label
    return check_policy_shift(distribution.probabilities[:, label], happened_N, transitions).warning


def check_policy_shift(
    probability_N: Tensor, happened_N: Tensor, transitions: Sequence[Transition]
) -> PolicyShiftCheck:
    """Compare predicted probabilities with outcomes as a uniform policy would have met them.

    Args:
        probability_N: Calibrated probabilities of held-out rows.
        happened_N: Observed outcomes, bool.
        transitions: The same rows; only their propensities are read.
    """
    rows = [row for row, transition in enumerate(transitions) if _explored(transition)]
    if not rows:
        missing = any(transition.propensity is None for transition in transitions)
        why = "propensities were not recorded" if missing else "no decision explored"
        return PolicyShiftCheck(
            ece=float("nan"),
            effective_sample_size=0.0,
            warning=f"{why}, so other policies cannot be checked",
        )
    propensity_N = torch.tensor([transitions[row].propensity for row in rows], dtype=torch.float64)
    weight_N = (1.0 / propensity_N).clamp(max=MAX_WEIGHT)
    effective = float(weight_N.sum().square() / weight_N.square().sum())  # Kish's formula
    ece = expected_calibration_error(probability_N[rows], happened_N[rows], weight_N)
    warning = ""
    if effective < MIN_EFFECTIVE_SAMPLE_SIZE:
        warning = f"effective sample of {effective:.0f} rows is too few to check other policies"
    elif ece > MAX_ECE:
        warning = f"under a uniform policy its probabilities are off by {ece:.2f} on average"
    return PolicyShiftCheck(ece=ece, effective_sample_size=effective, warning=warning)


def _explored(transition: Transition) -> bool:
    """Whether other actions were possible, or all were tried: not with a decision of propensity 1.

    An agent that tries every action, and so records 1 itself, says nothing of a decision.
    """
    propensity = transition.propensity
    return propensity is not None and (propensity < 1.0 or DECISION_KEY not in transition.info)
