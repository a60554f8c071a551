"""Cross-validation of the linear model, where a fifth of the groups is too little to test on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import Transition
from infrastructure.trajectories import Part
from infrastructure.world_model.distributions import Calibration
from infrastructure.world_model.distributions.cross_validation import FOLDS, fold_numbers
from infrastructure.world_model.distributions.metrics import clustered_standard_error
from infrastructure.world_model.fitting import FittedModel, TrainingData, fit_linear
from infrastructure.world_model.fitting.scoring import base_rate_scores, row_nll
from infrastructure.world_model.fitting.training_data import encode_split

MOST_ROWS = 5000
"""With more transitions the test groups alone are enough."""

_PARTS: dict[int, Part] = {0: "test", 1: "calibration"}  # of folds, counted from the one in turn


@dataclass(frozen=True, kw_only=True, slots=True)
class CrossValidation:
    """Gain of the linear model over the base rate on all groups, each fitted without it.

    Attributes:
        gain: Mean gain in nats.
        error: Its standard error.
        groups: Number of groups.
    """

    gain: float
    error: float
    groups: int


def cross_validate(data: TrainingData) -> CrossValidation | None:
    """Fit the linear model five times, calibrate each, and score it on another fifth of the groups.

    Returns:
        None if there are more than `MOST_ROWS` transitions, the split is by time, or a fold holds
        too little.
    """
    rows = [row for part in data.parts.values() for row in part.transitions]
    numbers, folds = fold_numbers([row.group for row in rows], len(rows))
    by_time = data.spec.split == "time"
    if data.mapped is not None or by_time or len(rows) > MOST_ROWS or folds < FOLDS:
        return None
    fold_N, gains, groups = numbers.tolist(), [], list[str]()
    for number in range(folds):
        split: dict[Part, list[Transition]] = {"train": [], "calibration": [], "test": []}
        for row, fold in zip(rows, fold_N, strict=True):
            split[_PARTS.get((fold - number) % FOLDS, "train")].append(row)
        try:
            parts = encode_split(data.spec, split)
        except InsufficientDataError:  # the targets vary in other folds only
            return None
        linear = fit_linear(parts)
        model = FittedModel(
            encoder=parts.encoder,
            codec=parts.codec,
            ensemble=linear,
            linear=linear,
            weights=dict.fromkeys(parts.codec.heads, (0.0, 1.0)),
            calibration=Calibration(),
        ).recalibrated(parts.calibration.transitions)
        held_out, codec = parts.test, parts.codec
        nll_N = row_nll(model.predict(held_out.features), held_out.outcomes, codec)
        gains.append(base_rate_scores(held_out.outcomes, codec).rows - nll_N)
        groups += held_out.groups
    gain_N = torch.cat(gains)
    return CrossValidation(
        gain=float(gain_N.mean()),
        error=clustered_standard_error(gain_N, groups),
        groups=len(set(groups)),
    )
