"""Predictions in terms of the spec's fields, and the ranking of candidate actions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from infrastructure.agent_contract.transition import Box, Discrete, FieldValue, TransitionSpec
from infrastructure.trajectories.schema import Values, as_vector, is_missing
from infrastructure.world_model.distributions import (
    BoxDistribution,
    DiscreteDistribution,
    TargetDistributions,
)
from infrastructure.world_model.distributions.box_calibration import COVERAGE
from infrastructure.world_model.fitting.rollout_fields import NOT_IN_STATE


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An interval around the prediction of each dimension of a `Box` target.

    Attributes:
        low, high: Ends of the interval of each dimension.
        coverage: Share of outcomes that lie inside, of each dimension.
    """

    low: Sequence[float]
    high: Sequence[float]
    coverage: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Prediction for one observation and action.

    Attributes:
        next_state: Predicted fields of the next observation, by target name; NaN where a change is
            predicted and the number before is missing.
        success_probability: Probability of the spec's success label; None if the spec names none.
        expected_improvement: Mean of the spec's improvement target (``reward`` by default); None
            if there is no such target.
        confidence: How far the prediction can be relied upon, in [0, 1]: of the success target if
            there is one, else the mean over targets. Of a label it is the probability of the
            predicted one, of a number 1 minus its standard deviation divided by that of the
            training values; see `infrastructure.world_model.distributions.confidence`. 0 before any
            fit.
        probabilities: Probability of each label, of each `Discrete` target.
        deviations: Standard deviation of each dimension, of each `Box` target; NaN where its value
            is NaN.
        intervals: Interval of each `Box` target, from the errors on held-out groups.
        warnings: What is odd about the input: sentences that begin with ``observation.NAME`` or
            ``action.NAME``.
        reasoning: Model that answered, and reasons for caution, in one line.
    """

    next_state: Mapping[str, FieldValue]
    success_probability: float | None
    expected_improvement: float | None
    confidence: float
    probabilities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    deviations: Mapping[str, Sequence[float]] = field(default_factory=dict)
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    reasoning: str = ""


def improvement_target(spec: TransitionSpec) -> str | None:
    """Return the target that measures progress: the declared one, a scalar ``reward``, or None."""
    if spec.improvement is not None:
        return spec.improvement
    return "reward" if spec.targets.get("reward") in (Box(), Box(delta=True)) else None


def untrained_prediction(spec: TransitionSpec) -> Prediction:
    """Return the prediction before any fit: even odds, no improvement, confidence 0."""
    success = spec.success
    return Prediction(
        next_state={},
        success_probability=None if success is None else 0.5,
        expected_improvement=None if improvement_target(spec) is None else 0.0,
        confidence=0.0,
        reasoning="not trained yet",
    )


def to_predictions(
    spec: TransitionSpec,
    predicted: TargetDistributions,
    observations: Sequence[Values],
    confidence_N: Tensor,
    reasoning: str,
) -> list[Prediction]:
    """Convert distributions to one `Prediction` per observation."""
    states: dict[str, list[FieldValue]] = {}
    chances: dict[str, list[dict[str, float]]] = {}
    deviations: dict[str, list[tuple[float, ...]]] = {}
    intervals: dict[str, list[Interval]] = {}
    for name, target in spec.targets.items():
        distribution = predicted[name]
        if isinstance(target, Discrete) and isinstance(distribution, DiscreteDistribution):
            rows = distribution.probabilities.tolist()
            chances[name] = [dict(zip(target.values, row, strict=True)) for row in rows]
            likeliest = distribution.probabilities.argmax(dim=1).tolist()
            states[name] = [target.values[index] for index in likeliest]
        elif isinstance(target, Box) and isinstance(distribution, BoxDistribution):
            states[name] = _next_values(name, target, distribution, observations)
            deviations[name] = _deviations(states[name], distribution)
            intervals[name] = _intervals(states[name], distribution)
    gains = expected_improvements(spec, predicted)
    confidence: list[float] = confidence_N.tolist()
    return [
        Prediction(
            next_state={n: column[row] for n, column in states.items() if n not in NOT_IN_STATE},
            success_probability=(
                None if spec.success is None else chances[spec.success[0]][row][spec.success[1]]
            ),
            expected_improvement=None if gains is None else gains[row],
            confidence=confidence[row],
            probabilities={name: column[row] for name, column in chances.items()},
            deviations={name: column[row] for name, column in deviations.items()},
            intervals={name: column[row] for name, column in intervals.items()},
            reasoning=reasoning,
        )
        for row in range(len(observations))
    ]


def success_probabilities(spec: TransitionSpec, predicted: TargetDistributions) -> list[float]:
    """Return the probability of the spec's success label, by row.

    Raises:
        ValueError: The spec names no success label.
    """
    if spec.success is None:
        raise ValueError("this spec names no success label: declare TransitionSpec.success")
    name, label = spec.success
    target, distribution = spec.targets[name], predicted[name]
    if not isinstance(target, Discrete) or not isinstance(distribution, DiscreteDistribution):
        raise TypeError(f"target {name} of the success label must be Discrete, got {target}")
    chances: list[float] = distribution.probabilities[:, target.values.index(label)].tolist()
    return chances


def expected_improvements(
    spec: TransitionSpec, predicted: TargetDistributions
) -> list[float] | None:
    """Return the mean of the improvement target, by row; None if there is none."""
    return _column(predicted, improvement_target(spec))


def rank_candidates(
    count: int, chances: Sequence[float] | None, improvements: Sequence[float] | None
) -> list[int]:
    """Rank *count* rows, best first: by chance of success, then improvement, then position."""
    keys = [key for key in (chances, improvements) if key is not None]
    scores = list(zip(*keys, strict=True)) if keys else [()] * count
    return sorted(range(count), key=scores.__getitem__, reverse=True)


def _next_values(
    name: str, target: Box, distribution: BoxDistribution, observations: Sequence[Values]
) -> list[FieldValue]:
    means: list[list[float]] = distribution.mean.tolist()
    if target.delta and name not in NOT_IN_STATE:
        before = [observation.get(name) for observation in observations]
        means = [_added(*pair) for pair in zip(before, means, strict=True)]
    return [tuple(row) if target.shape else row[0] for row in means]


def _deviations(
    values: Sequence[FieldValue], distribution: BoxDistribution
) -> list[tuple[float, ...]]:
    """Standard deviations; NaN where the value is: the start of its change is missing."""
    return [
        tuple(math.nan if math.isnan(x) else s for x, s in zip(as_vector(value), row, strict=True))
        for value, row in zip(values, distribution.variance.sqrt().tolist(), strict=True)
    ]


def _intervals(values: Sequence[FieldValue], distribution: BoxDistribution) -> list[Interval]:
    intervals = []
    for value, half_widths in zip(values, distribution.half_width_90().tolist(), strict=True):
        pairs = list(zip(as_vector(value), half_widths, strict=True))
        low, high = tuple(a - b for a, b in pairs), tuple(a + b for a, b in pairs)
        intervals.append(Interval(low=low, high=high, coverage=COVERAGE))
    return intervals


def _added(before: object, changes: Sequence[float]) -> list[float]:
    """The numbers *before* plus *changes*; NaN for those that are missing."""
    starts = [None] * len(changes) if is_missing(before) else as_vector(before)
    return [
        math.nan if start is None else float(start) + change
        for start, change in zip(starts, changes, strict=True)
    ]


def _column(predicted: TargetDistributions, name: str | None) -> list[float] | None:
    distribution = None if name is None else predicted[name]
    return distribution.mean[:, 0].tolist() if isinstance(distribution, BoxDistribution) else None
