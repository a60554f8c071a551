"""What a world model answers, in the words of its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from infrastructure.agent_contract.transition import Box, Discrete, FieldValue, TransitionSpec
from infrastructure.trajectories.schema import Values, as_vector
from infrastructure.world_model.outlook import BoxOutlook, DiscreteOutlook, Outlook

_NOT_IN_STATE = ("reward", "terminated")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Attributes:
    next_state: Predicted fields of the next observation, by target name.
    success_probability: Of the spec's success label; None if the spec names none.
    expected_improvement: Of the spec's improvement target (``reward`` by default); None if
        there is no such target.
    confidence: 1 minus the ensemble's disagreement as a share of its uncertainty, in [0, 1]:
        of the success target if there is one, else the mean over targets. 0 before any fit.
    probabilities: `Discrete` target to the probability of each label.
    deviations: `Box` target to its standard deviation per dimension.
    reasoning: Which model answered, in one line.
    """

    next_state: Mapping[str, FieldValue]
    success_probability: float | None
    expected_improvement: float | None
    confidence: float
    probabilities: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    deviations: Mapping[str, Sequence[float]] = field(default_factory=dict)
    reasoning: str = ""


def improvement_target(spec: TransitionSpec) -> str | None:
    """The target that measures progress: as declared, else a scalar ``reward``, else None."""
    if spec.improvement is not None:
        return spec.improvement
    return "reward" if spec.targets.get("reward") in (Box(), Box(delta=True)) else None


def untrained_prediction(spec: TransitionSpec) -> Prediction:
    """The answer before any fit: even odds, no change, no confidence."""
    success = spec.success
    return Prediction(
        next_state={},
        success_probability=None if success is None else 0.5,
        expected_improvement=None if improvement_target(spec) is None else 0.0,
        confidence=0.0,
        reasoning="not trained yet",
    )


def predictions_of(
    spec: TransitionSpec, outlook: Outlook, observations: Sequence[Values], reasoning: str
) -> list[Prediction]:
    """Put *outlook* into words, one `Prediction` per observation."""
    states: dict[str, list[FieldValue]] = {}
    chances: dict[str, list[dict[str, float]]] = {}
    deviations: dict[str, list[tuple[float, ...]]] = {}
    for name, target in spec.targets.items():
        expected = outlook[name]
        if isinstance(target, Discrete) and isinstance(expected, DiscreteOutlook):
            rows = expected.probabilities.tolist()
            chances[name] = [dict(zip(target.values, row, strict=True)) for row in rows]
            likeliest = expected.probabilities.argmax(dim=1).tolist()
            states[name] = [target.values[index] for index in likeliest]
        elif isinstance(target, Box) and isinstance(expected, BoxOutlook):
            deviations[name] = [tuple(row) for row in expected.variance.sqrt().tolist()]
            states[name] = _next_values(name, target, expected, observations)
    improvement = improvement_target(spec)
    gains = _column(outlook, improvement)
    confidences = _confidences(spec, outlook)
    return [
        Prediction(
            next_state={n: column[row] for n, column in states.items() if n not in _NOT_IN_STATE},
            success_probability=(
                None if spec.success is None else chances[spec.success[0]][row][spec.success[1]]
            ),
            expected_improvement=None if gains is None else gains[row],
            confidence=confidences[row],
            probabilities={name: column[row] for name, column in chances.items()},
            deviations={name: column[row] for name, column in deviations.items()},
            reasoning=reasoning,
        )
        for row in range(len(observations))
    ]


def by_promise(spec: TransitionSpec, outlook: Outlook) -> list[int]:
    """Rows by success probability, ties by expected improvement, then as they came; best first."""
    rows = len(next(iter(outlook.values())).epistemic)
    keys = []
    if spec.success is not None:
        name, label = spec.success
        target, expected = spec.targets[name], outlook[name]
        if isinstance(target, Discrete) and isinstance(expected, DiscreteOutlook):
            keys.append(expected.probabilities[:, target.values.index(label)].tolist())
    gains = _column(outlook, improvement_target(spec))
    if gains is not None:
        keys.append(gains)
    promise = list(zip(*keys, strict=True)) if keys else [()] * rows
    return sorted(range(rows), key=promise.__getitem__, reverse=True)


def _next_values(
    name: str, target: Box, expected: BoxOutlook, observations: Sequence[Values]
) -> list[FieldValue]:
    means: list[list[float]] = expected.mean.tolist()
    if target.delta and name not in _NOT_IN_STATE:
        before = [as_vector(observation[name]) for observation in observations]
        means = [
            [float(start) + change for start, change in zip(*pair, strict=True)]
            for pair in zip(before, means, strict=True)
        ]
    return [tuple(row) if target.shape else row[0] for row in means]


def _column(outlook: Outlook, name: str | None) -> list[float] | None:
    expected = None if name is None else outlook[name]
    return expected.mean[:, 0].tolist() if isinstance(expected, BoxOutlook) else None


def _confidences(spec: TransitionSpec, outlook: Outlook) -> list[float]:
    decisive = spec.targets if spec.success is None else (spec.success[0],)
    disagreement_N = torch.stack([outlook[name].epistemic for name in decisive]).mean(0)
    confidences: list[float] = (1.0 - disagreement_N).clamp(0.0, 1.0).tolist()
    return confidences
