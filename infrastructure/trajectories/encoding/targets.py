"""Encodes prediction targets, and holds their base rates.

Shapes: N rows, C declared and K varying dimensions of a `Box` target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.column_checks import box_targets
from infrastructure.trajectories.encoding.standardiser import Numbers, Standardiser
from infrastructure.trajectories.schema import as_vector, labels_of, target_value

Outcomes: TypeAlias = Mapping[str, Tensor]
"""Observed targets in recorded units: ``[N, C]`` float64 of a `Box`, ``[N]`` int64 of a `Discrete`
target (position of its label)."""

MIN_LOG_VARIANCE = -14.0
"""Lower bound of the log-variances that a network predicts, of standardised numbers."""

_FORMER_MIN_LOG_VARIANCE = -8.0  # of models that do not say theirs


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCodec:
    """Encodes targets for training, and holds the base rates that a model has to beat.

    Attributes:
        spec: Declares the targets.
        standardisers: Statistics of each `Box` target.
        frequencies: Relative frequency of each label of each `Discrete` target, smoothed by one
            occurrence spread over all labels, so that no label has probability zero.
        single_label: `Discrete` targets with fewer than two labels in the training data.
        min_log_variance: `MIN_LOG_VARIANCE` as it was when the networks were trained.
    """

    spec: TransitionSpec
    standardisers: Mapping[str, Standardiser]
    frequencies: Mapping[str, tuple[float, ...]]
    single_label: tuple[str, ...]
    min_log_variance: float = MIN_LOG_VARIANCE

    @classmethod
    def fit(cls, spec: TransitionSpec, transitions: Sequence[Transition]) -> TargetCodec:
        """Compute statistics of the targets; *transitions* are those of the training groups."""
        standardisers, frequencies, single = {}, {}, []
        for name, field in spec.targets.items():
            if isinstance(field, Box):
                vectors_NC = _vectors(spec, transitions, name)
                standardisers[name] = Standardiser.fit(vectors_NC, squeeze=False)
            elif isinstance(field, Discrete):
                labels = labels_of([target_value(spec, row, name) for row in transitions])
                counts = [labels.count(label) for label in field.values]
                share = 1.0 / len(counts)
                frequencies[name] = tuple((count + share) / (len(labels) + 1) for count in counts)
                if sum(count > 0 for count in counts) < 2:
                    single.append(name)
        return cls(
            spec=spec,
            standardisers=standardisers,
            frequencies=frequencies,
            single_label=tuple(single),
        )

    @property
    def heads(self) -> dict[str, int]:
        """Width of each varying target: dimensions of a `Box`, labels of a `Discrete`."""
        widths = {name: standardiser.width for name, standardiser in self.standardisers.items()}
        for name, frequencies in self.frequencies.items():
            widths[name] = 0 if name in self.single_label else len(frequencies)
        return {name: widths[name] for name in self.spec.targets if widths[name]}

    @property
    def constant(self) -> tuple[str, ...]:
        """Targets that did not vary: not learned, and predicted by their base rate."""
        return tuple(name for name in self.spec.targets if name not in self.heads)

    @property
    def success_label(self) -> tuple[str, int] | None:
        """Target and position of the spec's success label; None if none, or it did not vary."""
        success = self.spec.success
        if success is None or success[0] not in self.heads:
            return None
        return success[0], self.labels(success[0]).index(success[1])

    def is_discrete(self, name: str) -> bool:
        """Whether target *name* is `Discrete`."""
        return name in self.frequencies

    def labels(self, name: str) -> tuple[str, ...]:
        """Return the labels of `Discrete` target *name*.

        Raises:
            ValueError: The target is not a `Discrete`.
        """
        field = self.spec.targets[name]
        if not isinstance(field, Discrete):
            raise ValueError(f"target {name!r} has no labels: it is not a Discrete")
        return field.values

    def encode(self, outcomes: Outcomes) -> dict[str, Tensor]:
        """Encode varying targets: `Box` as ``[N, K]`` float32, `Discrete` as ``[N]`` int64."""
        return {
            name: outcomes[name]
            if self.is_discrete(name)
            else self.standardisers[name].apply(outcomes[name].numpy())
            for name in self.heads
        }

    def outcomes(self, transitions: Sequence[Transition]) -> dict[str, Tensor]:
        """Return all observed targets in recorded units; see `Outcomes`."""
        return {
            name: self.label_positions(transitions, name)
            if self.is_discrete(name)
            else torch.from_numpy(_vectors(self.spec, transitions, name))
            for name in self.spec.targets
        }

    def to_json(self) -> dict[str, object]:
        """Return what `from_json` needs in addition to the spec."""
        return {
            "standardisers": {key: item.to_json() for key, item in self.standardisers.items()},
            "frequencies": {key: list(item) for key, item in self.frequencies.items()},
            "single_label": list(self.single_label),
            "min_log_variance": self.min_log_variance,
        }

    @classmethod
    def from_json(cls, spec: TransitionSpec, value: Mapping[str, object]) -> TargetCodec:
        """Rebuild the codec that `to_json` described.

        Raises:
            KeyError, TypeError: *value* does not describe a codec.
        """
        statistics = cast(Mapping[str, Mapping[str, list[float]]], value["standardisers"])
        frequencies = cast(Mapping[str, list[float]], value["frequencies"])
        return cls(
            spec=spec,
            standardisers={k: Standardiser.from_json(item) for k, item in statistics.items()},
            frequencies={name: tuple(item) for name, item in frequencies.items()},
            single_label=tuple(cast(Sequence[str], value["single_label"])),
            min_log_variance=cast(float, value.get("min_log_variance", _FORMER_MIN_LOG_VARIANCE)),
        )

    def label_positions(self, transitions: Sequence[Transition], name: str) -> Tensor:
        """Position of each row's label of `Discrete` target *name*, ``[N]`` int64."""
        position = {label: index for index, label in enumerate(self.labels(name))}
        values = [target_value(self.spec, transition, name) for transition in transitions]
        return torch.tensor([position[label] for label in labels_of(values)])


def _vectors(spec: TransitionSpec, transitions: Sequence[Transition], name: str) -> Numbers:
    """Recorded values of `Box` target *name*, ``[N, C]`` float64."""
    field = spec.targets[name]
    vectors_NC = box_targets(field, name, transitions) if isinstance(field, Box) else None
    if vectors_NC is not None:
        return vectors_NC
    values = [target_value(spec, transition, name) for transition in transitions]
    return np.array([as_vector(value) for value in values], dtype=np.float64)
