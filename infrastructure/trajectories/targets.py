"""What the world model predicts, as tensors, and back.

Shapes: N rows, K varying dimensions of a `Box` target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Box, Discrete, Transition, TransitionSpec
from infrastructure.trajectories.schema import as_vector, label_of, target_value
from infrastructure.trajectories.standardiser import Standardiser


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetCodec:
    """Encodes targets for training, and holds the base rates that a model has to beat.

    Attributes:
        spec: Declares the targets.
        standardisers: Of each `Box` target.
        frequencies: Of each `Discrete` target: how often each label occurred, smoothed by one
            occurrence in all, so that nothing is impossible.
    """

    spec: TransitionSpec
    standardisers: Mapping[str, Standardiser]
    frequencies: Mapping[str, tuple[float, ...]]
    single_label: tuple[str, ...]

    @classmethod
    def fit(cls, spec: TransitionSpec, transitions: Sequence[Transition]) -> TargetCodec:
        """Take statistics of the targets of *transitions*: those of the training groups."""
        standardisers, frequencies, single = {}, {}, []
        for name, field in spec.targets.items():
            values = [target_value(spec, transition, name) for transition in transitions]
            if isinstance(field, Box):
                vectors_NC = np.array([as_vector(value) for value in values], dtype=np.float64)
                standardisers[name] = Standardiser.fit(vectors_NC, squeeze=False)
            elif isinstance(field, Discrete):
                labels = [label_of(value) for value in values]
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
        """Outputs of each target that varies: dimensions of a `Box`, labels of a `Discrete`."""
        widths = {name: standardiser.width for name, standardiser in self.standardisers.items()}
        for name, frequencies in self.frequencies.items():
            widths[name] = 0 if name in self.single_label else len(frequencies)
        return {name: widths[name] for name in self.spec.targets if widths[name]}

    @property
    def constant(self) -> tuple[str, ...]:
        """Targets that did not vary: not learned, predicted as they always were."""
        return tuple(name for name in self.spec.targets if name not in self.heads)

    def is_discrete(self, name: str) -> bool:
        """Whether target *name* is `Discrete`."""
        return name in self.frequencies

    def labels(self, name: str) -> tuple[str, ...]:
        """The labels of `Discrete` target *name*.

        Raises:
            ValueError: It is no `Discrete` target.
        """
        field = self.spec.targets[name]
        if not isinstance(field, Discrete):
            raise ValueError(f"target {name!r} is no Discrete, it has no labels")
        return field.values

    def encode(self, transitions: Sequence[Transition]) -> dict[str, Tensor]:
        """Varying targets: `Box` as ``[N, K]`` float32, `Discrete` as ``[N]`` int64."""
        tensors: dict[str, Tensor] = {}
        for name in self.heads:
            values = [target_value(self.spec, transition, name) for transition in transitions]
            if self.is_discrete(name):
                position = {label: index for index, label in enumerate(self.labels(name))}
                tensors[name] = torch.tensor([position[label_of(value)] for value in values])
            else:
                vectors_NC = np.array([as_vector(value) for value in values], dtype=np.float64)
                tensors[name] = self.standardisers[name].apply(vectors_NC)
        return tensors

    def to_json(self) -> dict[str, object]:
        """What `from_json` needs beside the spec."""
        return {
            "standardisers": {key: item.to_json() for key, item in self.standardisers.items()},
            "frequencies": {key: list(item) for key, item in self.frequencies.items()},
            "single_label": list(self.single_label),
        }

    @classmethod
    def from_json(cls, spec: TransitionSpec, value: Mapping[str, object]) -> TargetCodec:
        """Read what `to_json` wrote.

        Raises:
            KeyError, TypeError: *value* is no codec.
        """
        statistics = cast(Mapping[str, Mapping[str, list[float]]], value["standardisers"])
        frequencies = cast(Mapping[str, list[float]], value["frequencies"])
        return cls(
            spec=spec,
            standardisers={k: Standardiser.from_json(item) for k, item in statistics.items()},
            frequencies={name: tuple(item) for name, item in frequencies.items()},
            single_label=tuple(cast(Sequence[str], value["single_label"])),
        )
