"""Recorded transitions, checked, split by group and encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from torch import Tensor

from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories import Part, split_by_group
from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.features import Features
from infrastructure.trajectories.schema import input_problem, target_problem
from infrastructure.trajectories.targets import TargetCodec
from infrastructure.world_model.choice import number_states
from infrastructure.world_model.outlook import Outcomes, outcomes_of

MIN_TRAINING_TRANSITIONS = 100
MIN_HELD_OUT_GROUPS = 2
"""Of calibration and of test groups each. Two is where a spread between groups exists."""

MAX_REASONS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPart:
    """One part of the split.

    Attributes:
        transitions: As recorded.
        features: Their encoded inputs.
        targets: Their encoded varying targets.
        outcomes: Their targets in recorded units.
    states: ``[N]`` int64; equal numbers are rivals, see `choice.number_states`.
    """

    transitions: Sequence[Transition]
    features: Features
    targets: Mapping[str, Tensor]
    outcomes: Outcomes
    states: Tensor

    @property
    def groups(self) -> list[str]:
        """The group of each row."""
        return [transition.group for transition in self.transitions]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """Attributes:
    spec, encoder, codec: Encoder and codec are fitted on the training groups only.
    parts: Train, calibration and test; no group is in two of them.
    unusable: Reason to number of transitions that were left out.
    """

    spec: TransitionSpec
    encoder: FeatureEncoder
    codec: TargetCodec
    parts: Mapping[Part, DataPart]
    unusable: Mapping[str, int]

    @property
    def train(self) -> DataPart:
        """What the networks are fitted on."""
        return self.parts["train"]

    @property
    def calibration(self) -> DataPart:
        """What calibration and the choice between models are fitted on."""
        return self.parts["calibration"]

    @property
    def test(self) -> DataPart:
        """What nothing is fitted on."""
        return self.parts["test"]

    def left_out(self) -> list[str]:
        """What an operator should know is not learned from: one sentence each, the worst first."""
        constant = (*self.encoder.constant, *self.codec.constant)
        sentences = [f"constant fields are left out: {', '.join(constant)}"] if constant else []
        worst = Counter(self.unusable).most_common(MAX_REASONS)
        sentences += [f"{count} transitions are left out: {reason}" for reason, count in worst]
        if others := len(self.unusable) - len(worst):
            sentences.append(f"transitions are left out for {others} more reasons")
        return sentences


def prepare(
    spec: TransitionSpec, transitions: Iterable[Transition], *, split_seed: int = 0
) -> TrainingData:
    """Check, split and encode *transitions*; what does not fit *spec* is left out and counted.

    Raises:
        InsufficientDataError: Too few transitions, held-out groups, or targets that vary.
    """
    usable, unusable = _usable(spec, transitions)
    rows = split_by_group([transition.group for transition in usable], split_seed)
    split = {part: [usable[row] for row in indices] for part, indices in rows.items()}
    _require("usable training transitions", len(split["train"]), MIN_TRAINING_TRANSITIONS)
    for part in ("calibration", "test"):
        groups = len({transition.group for transition in split[part]})
        _require(f"{part} groups", groups, MIN_HELD_OUT_GROUPS)
    return encode_split(spec, split, unusable)


def encode_split(
    spec: TransitionSpec,
    split: Mapping[Part, Sequence[Transition]],
    unusable: Mapping[str, int] = MappingProxyType({}),
) -> TrainingData:
    """Encode transitions that were split and checked by the caller.

    Args:
        spec: Declares the fields.
        split: All three parts; no group may be in two of them.
        unusable: What was left out, for the record.

    Raises:
        InsufficientDataError: No target varies.
    """
    observations = [transition.observation for transition in split["train"]]
    actions = [transition.action for transition in split["train"]]
    encoder = FeatureEncoder.fit(spec, observations, actions)
    codec = TargetCodec.fit(spec, split["train"])
    _require("targets that vary", len(codec.heads), 1)
    return TrainingData(
        spec=spec,
        encoder=encoder,
        codec=codec,
        parts={part: _encode(encoder, codec, chosen) for part, chosen in split.items()},
        unusable=unusable,
    )


def _usable(
    spec: TransitionSpec, transitions: Iterable[Transition]
) -> tuple[list[Transition], dict[str, int]]:
    usable, problems = [], Counter[str]()
    for transition in transitions:
        problem = input_problem(spec, transition.observation, transition.action) or target_problem(
            spec, transition
        )
        if problem is None:
            usable.append(transition)
        else:
            problems[problem] += 1
    return usable, dict(problems)


def _encode(
    encoder: FeatureEncoder, codec: TargetCodec, transitions: Sequence[Transition]
) -> DataPart:
    return DataPart(
        transitions=transitions,
        features=encoder.encode(
            [transition.observation for transition in transitions],
            [transition.action for transition in transitions],
        ),
        targets=codec.encode(transitions),
        outcomes=outcomes_of(codec, transitions),
        states=number_states(transitions),
    )


def _require(what: str, got: int, needed: int) -> None:
    if got < needed:
        raise InsufficientDataError(what, got, needed)
