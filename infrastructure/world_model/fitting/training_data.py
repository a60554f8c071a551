"""Training data: recorded transitions, checked, split by group and encoded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from types import MappingProxyType

import torch
from torch import Tensor

from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories import Part, split_rows
from infrastructure.trajectories.column_checks import transitions_fit
from infrastructure.trajectories.data_checks import Finding, check_data
from infrastructure.trajectories.encoding import FeatureEncoder, Features, Outcomes, TargetCodec
from infrastructure.trajectories.encoding.flags import IS_CUT
from infrastructure.trajectories.history import with_history
from infrastructure.trajectories.schema import transition_problem
from infrastructure.trajectories.split import (
    ENOUGH_GROUPS,
    MIN_HELD_OUT_GROUPS,
    MIN_TRAINING_TRANSITIONS,
)
from infrastructure.world_model.fitting.mapped_rows import MappedRows
from infrastructure.world_model.fitting.ranking_loss import number_states
from infrastructure.world_model.fitting.rare_success import describe_constant_targets

MAX_REASONS = 5
_CHECKED_TOGETHER = 1024  # one unusual value costs as many checks, one by one


@dataclass(frozen=True, kw_only=True, slots=True)
class DataPart:
    """One part of the split.

    Attributes:
        features: Encoded inputs.
        targets: Encoded varying targets.
        outcomes: Targets in recorded units.
        states: State numbers, ``[N]`` int64; rows of one state compete, see `ranking_loss`. Without
            a success label nothing competes, and each row has its own number.
    """

    transitions: Sequence[Transition]
    features: Features
    targets: Mapping[str, Tensor]
    outcomes: Outcomes
    states: Tensor

    @property
    def groups(self) -> list[str]:
        """Group of each row."""
        return [transition.group for transition in self.transitions]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingData:
    """Encoded data of one fit.

    Attributes:
        encoder, codec: Encoders of inputs and targets, fitted on the training groups only.
        parts: Train, calibration and test data; no group is in two of them.
        unusable: Number of excluded transitions by reason, which ends with the first example.
        findings: What makes the score on held-out groups look too good; see `check_data`.
        mapped: All training rows in files, where `parts` has samples of more data; else None.
    """

    spec: TransitionSpec
    encoder: FeatureEncoder
    codec: TargetCodec
    parts: Mapping[Part, DataPart]
    unusable: Mapping[str, int]
    findings: Sequence[Finding] = ()
    mapped: MappedRows | None = None

    @property
    def training_rows(self) -> int:
        """Number of rows that the networks are trained on."""
        return len(self.train.features) if self.mapped is None else len(self.mapped)

    @property
    def train(self) -> DataPart:
        """Groups that the networks are fitted on."""
        return self.parts["train"]

    @property
    def calibration(self) -> DataPart:
        """Groups for calibration and model selection."""
        return self.parts["calibration"]

    @property
    def test(self) -> DataPart:
        """Groups that nothing is fitted on."""
        return self.parts["test"]

    def describe_exclusions(self) -> list[str]:
        """Describe excluded fields, excluded transitions, and cut texts, one sentence each."""
        constant = (*self.encoder.constant, *self.codec.constant)
        sentences = [f"constant fields are excluded: {', '.join(constant)}"] if constant else []
        cut = Counter[str]()
        for part in self.parts.values():
            for text, odd_N in part.features.flags.items():
                if text.endswith(IS_CUT):
                    cut[text] += int(odd_N.sum())
        sentences += _describe_unusable(self.unusable)
        return sentences + [f"in {count} transitions, {text}" for text, count in cut.items()]


def prepare_training_data(
    spec: TransitionSpec, transitions: Iterable[Transition], *, split_seed: int = 0
) -> TrainingData:
    """Check, split and encode *transitions*; exclude and count those that do not fit *spec*.

    Raises:
        InsufficientDataError: Too few transitions, held-out groups, or targets that vary; the
            message has the reasons of exclusions.
        TypeError: Something in *transitions* is not a `Transition`.
    """
    if spec.history > 1:
        transitions = with_history(spec, transitions)
    check = UsabilityCheck(spec)
    usable = list(chain.from_iterable(check.usable(transitions)))
    unusable = check.unusable
    groups = [transition.group for transition in usable]
    rows = split_rows(spec.split, groups, split_seed)
    split = {part: [usable[row] for row in indices] for part, indices in rows.items()}
    require_enough(
        len(split["train"]),
        {part: len({row.group for row in split[part]}) for part in ("calibration", "test")},
        unusable,
        groups,
    )
    data = encode_split(spec, split, unusable)
    return replace(data, findings=check_data(spec, usable, rows))


def require_enough(
    training_rows: int,
    held_out_groups: Mapping[Part, int],
    unusable: Mapping[str, int],
    groups: Sequence[str] = (),
) -> None:
    """Check that there is enough to train and evaluate on.

    Args:
        held_out_groups: Number of groups in calibration and test data.
        unusable: Number of excluded transitions by reason.
        groups: Group of each usable transition, to tell many transitions in few groups.

    Raises:
        InsufficientDataError: There is too little; the message has the reasons of exclusions.
    """
    why = "; ".join(_describe_unusable(unusable))
    part, fewest = min(held_out_groups.items(), key=lambda item: item[1])
    if len(groups) >= MIN_TRAINING_TRANSITIONS and fewest < MIN_HELD_OUT_GROUPS:
        what, problem = f"{part} groups", _few_groups(groups)
        raise InsufficientDataError(what, fewest, MIN_HELD_OUT_GROUPS, why, problem=problem)
    _require("usable training transitions", training_rows, MIN_TRAINING_TRANSITIONS, why)
    for part, count in held_out_groups.items():
        _require(f"{part} groups", count, MIN_HELD_OUT_GROUPS, why)


def _few_groups(groups: Sequence[str]) -> str:
    """What is wrong with these *groups* of transitions, and what to do."""
    count, largest = len(set(groups)), Counter(groups).most_common(1)[0][0]
    remedy = "give each episode, task or customer its own group"
    if count == 1:
        return (
            f"{len(groups)} transitions, all in one group {largest!r}: {remedy}; the model is "
            "tested on groups that it has not seen"
        )
    return (
        f"{len(groups)} transitions in {count} groups, such as {largest!r}: too few, because the "
        f"model is tested on groups that it has not seen; {remedy}, or let the agent collect more "
        f"groups ({ENOUGH_GROUPS} are nearly always enough)"
    )


def encode_split(
    spec: TransitionSpec,
    split: Mapping[Part, Sequence[Transition]],
    unusable: Mapping[str, int] = MappingProxyType({}),
) -> TrainingData:
    """Encode transitions that the caller has split and checked.

    Args:
        split: Transitions of all three parts; no group may be in two of them.
        unusable: Number of excluded transitions by reason.

    Raises:
        InsufficientDataError: No target varies; the message has the reasons of exclusions.
    """
    observations = [transition.observation for transition in split["train"]]
    actions = [transition.action for transition in split["train"]]
    encoder, features = FeatureEncoder.fit_and_encode(spec, observations, actions)
    codec = TargetCodec.fit(spec, split["train"])
    if not codec.heads:
        why, problem = (
            "; ".join(_describe_unusable(unusable)),
            describe_constant_targets(spec, split),
        )
        raise InsufficientDataError("targets that vary", 0, 1, why, problem=problem)
    encoded = {
        part: features if part == "train" else encoder.encode_transitions(rows)
        for part, rows in split.items()
    }
    return TrainingData(
        spec=spec,
        encoder=encoder,
        codec=codec,
        parts={part: data_part(codec, rows, encoded[part]) for part, rows in split.items()},
        unusable=unusable,
    )


def fit_encoders(
    spec: TransitionSpec, transitions: Sequence[Transition]
) -> tuple[FeatureEncoder, TargetCodec]:
    """Fit the encoders of inputs and targets on *transitions* of the training groups.

    Raises:
        InsufficientDataError: No target varies.
    """
    observations = [transition.observation for transition in transitions]
    actions = [transition.action for transition in transitions]
    codec = TargetCodec.fit(spec, transitions)
    _require("targets that vary", len(codec.heads), 1)
    return FeatureEncoder.fit(spec, observations, actions), codec


class UsabilityCheck:
    """Excludes transitions that do not fit *spec*, and counts them by reason."""

    def __init__(self, spec: TransitionSpec) -> None:
        self._spec = spec
        self._problems = Counter[str]()
        self._examples = dict[str, str]()

    @property
    def unusable(self) -> dict[str, int]:
        """Number of excluded transitions by reason, which ends with the first example."""
        return {self._examples[reason]: count for reason, count in self._problems.items()}

    def usable(self, transitions: Iterable[Transition]) -> Iterator[list[Transition]]:
        """Yield the transitions that fit, some together.

        Raises:
            TypeError: Something in *transitions* is not a `Transition`.
        """
        spec, remaining, number = self._spec, iter(transitions), -1
        while together := list(islice(remaining, _CHECKED_TOGETHER)):
            for transition in together:
                number += 1
                if not isinstance(transition, Transition):
                    raise TypeError(
                        f"transition {number} is a {type(transition).__name__}, not a Transition: "
                        "pass Transition(group=..., observation={...}, action={...}, reward=..., "
                        "next_observation={...}) of infrastructure.agent_contract"
                    )
            if transitions_fit(spec, together):
                yield together
                continue
            usable = []
            for transition in together:
                problem = transition_problem(spec, transition)
                if problem is None:
                    usable.append(transition)
                else:
                    reason = problem.partition(", got ")[0]  # the same for other values
                    self._problems[reason] += 1
                    self._examples.setdefault(reason, problem)
            yield usable


def _describe_unusable(unusable: Mapping[str, int]) -> list[str]:
    """One sentence for each reason, most frequent first."""
    worst = Counter(unusable).most_common(MAX_REASONS)
    sentences = [f"{count} transitions are excluded: {reason}" for reason, count in worst]
    if others := len(unusable) - len(worst):
        sentences.append(f"transitions are excluded for {others} more reasons")
    return sentences


def data_part(
    codec: TargetCodec, transitions: Sequence[Transition], features: Features
) -> DataPart:
    """Encode the targets of *transitions*; *features* are their encoded inputs."""
    outcomes = codec.outcomes(transitions)
    return DataPart(
        transitions=transitions,
        features=features,
        targets=codec.encode(outcomes),
        outcomes=outcomes,
        states=(
            torch.arange(len(transitions))
            if codec.spec.success is None
            else number_states(transitions)
        ),
    )


def _require(what: str, got: int, needed: int, why: str = "") -> None:
    if got < needed:
        raise InsufficientDataError(what, got, needed, why)
