"""Whether probabilities that are right where one policy acts are right where another would.

The collecting policy's choices are weighted by one over their propensity, which makes them the
choices of a policy that draws evenly: the farthest from any ranking. Where that gives other
frequencies than predicted, or where too few random actions were recorded to tell, the model
says so with every prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Transition
from infrastructure.world_model.metrics import expected_calibration_error

MOST_WEIGHT = 1000.0
LEAST_EFFECTIVE_ROWS = 30.0
WORST_ECE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class ShiftCheck:
    """Attributes:
    ece: Expected calibration error under even draws; NaN where it is not known.
    effective_rows: How many evenly drawn rows the weighted ones are worth.
    caution: Why not to trust probabilities under another policy; empty if there is no reason.
    """

    ece: float
    effective_rows: float
    caution: str


def check_shift(
    probability_N: Tensor, happened_N: Tensor, transitions: Sequence[Transition]
) -> ShiftCheck:
    """Hold predicted probabilities against what happened, as an even policy would have met it.

    Args:
        probability_N: Calibrated, of held-out rows.
        happened_N: Bool.
        transitions: The same rows; their propensities count.
    """
    if any(transition.propensity is None for transition in transitions):
        return ShiftCheck(
            ece=float("nan"),
            effective_rows=0.0,
            caution="propensities were not recorded, so nothing is known of other policies",
        )
    propensity_N = torch.tensor([t.propensity for t in transitions], dtype=torch.float64)
    weight_N = (1.0 / propensity_N).clamp(max=MOST_WEIGHT)
    effective = float(weight_N.sum().square() / weight_N.square().sum())
    ece = expected_calibration_error(probability_N, happened_N, weight_N)
    caution = ""
    if effective < LEAST_EFFECTIVE_ROWS:
        caution = f"random actions are worth {effective:.0f} rows, too few to know other policies"
    elif ece > WORST_ECE:
        caution = f"under an even policy its probabilities are off by {ece:.2f} on average"
    return ShiftCheck(ece=ece, effective_rows=effective, caution=caution)
