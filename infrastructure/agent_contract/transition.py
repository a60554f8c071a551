"""What an agent records, and the types of its fields for a world model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

FieldValue: TypeAlias = float | int | bool | str | Sequence[float] | Sequence[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """Real numbers: a scalar (``shape == ()``) or a vector (``shape == (n,)``).

    False and true count as 0 and 1, in training and in questions alike.

    Attributes:
        shape: ``()`` or ``(n,)``.
        delta: Whether a target predicts the change from the observation of the same name.
    """

    shape: tuple[int, ...] = ()
    delta: bool = False

    def __post_init__(self) -> None:
        if len(self.shape) > 1 or any(size < 1 for size in self.shape):
            raise ValueError(f"Box takes shape () or (n,) with n >= 1, got {self.shape}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Discrete:
    """One of a fixed set of labels; as an input, an unseen label loses its own effect only."""

    values: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.values) < 2 or len(set(self.values)) != len(self.values):
            raise ValueError(f"Discrete needs two or more distinct labels, got {self.values}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Text:
    """A string or a list of tokens, embedded by hashing: an input, never a target.

    Attributes:
        buckets: Maximum number of features of its words, and of pieces of its words, that a model
            knows. Specifications that differ in it alone are equal.
        embedding: Local embedding model whose vectors are inputs, too: a folder in the format of
            model2vec, or ``PACKAGE:FOLDER`` for a folder in an installed package. Needs the extra
            ``text``; nothing is downloaded. Empty for none.
    """

    buckets: int = field(default=65536, compare=False)
    embedding: str = ""

    def __post_init__(self) -> None:
        if self.buckets < 2:
            raise ValueError(f"Text needs two or more buckets, got {self.buckets}")


FieldType: TypeAlias = Box | Discrete | Text

MAX_HISTORY = 256
MAX_ROLLOUT_STEPS = 10_000
"""Most observations that are inputs: each adds a field for every one of the current ones."""

_EARLIER = re.compile(r"\[-\d+\]$")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransitionSpec:
    """The fields of an agent's transitions.

    Attributes:
        observation: Input fields that describe the state.
        action: Input fields that describe the action.
        targets: Fields that the world model predicts: ``reward``, ``terminated``, or fields of
            ``next_observation``. They are not inputs.
        success: ``(target, label)``: label of a `Discrete` target that counts as success.
        improvement: Scalar `Box` target that measures progress (``reward`` by default).
        history: Number of observations and actions, up to the current ones, that are inputs: 1 if
            an observation shows the whole state. Above 1, *observation* gets a further field for
            each earlier one: ``speed[-1]`` is the field ``speed`` one step earlier.
        rollout_steps: Length of the rollouts whose error is measured, and decides with the other
            scores what is published; 0 for none.
        split: Groups that a model is tested on: ``group`` for those that a hash of their names
            chooses, from all times; ``time`` for the newest fifth by first appearance, calibrated
            on the fifth before.

    Raises:
        ValueError: There is no observation or no target; a target is `Text`; a ``delta`` target
            has no observation of the same name and shape; *success* or *improvement* does not
            name such a target; *history* is below 1 or above `MAX_HISTORY`, *rollout_steps* below
            0 or above `MAX_ROLLOUT_STEPS`, either not whole, or *split* unknown; with a history,
            an observation and an action have one name.
    """

    observation: Mapping[str, FieldType]
    action: Mapping[str, FieldType]
    targets: Mapping[str, FieldType]
    success: tuple[str, str] | None = None
    improvement: str | None = None
    history: int = 1
    rollout_steps: int = 0
    split: Literal["group", "time"] = "group"

    def __post_init__(self) -> None:
        self._declare_earlier_fields()
        if not self.observation or not self.targets:
            raise ValueError("a TransitionSpec needs at least one observation and one target")
        if self.split not in ("group", "time"):
            raise ValueError(f"split must be 'group' or 'time', got {self.split!r}")
        self._check_targets()
        if self.success is not None:
            target_name, label = self.success
            target = self.targets.get(target_name, Box())
            if not isinstance(target, Discrete) or label not in target.values:
                raise ValueError(f"success {self.success} must name a label of a Discrete target")
        if self.improvement is not None:
            target = self.targets.get(self.improvement, Text())
            if not isinstance(target, Box) or target.shape != ():
                raise ValueError(f"improvement {self.improvement!r} must name a scalar Box target")

    @property
    def current_fields(self) -> tuple[str, ...]:
        """Names of the observation's fields without those of earlier steps."""
        if self.history == 1:
            return tuple(self.observation)
        return tuple(name for name in self.observation if not _EARLIER.search(name))

    @property
    def earlier_fields(self) -> dict[str, tuple[str, int]]:
        """Field and age in steps of each earlier field of the observation, by its name."""
        sources = (*self.current_fields, *self.action)
        ages = range(1, self.history)
        return {f"{source}[-{age}]": (source, age) for age in ages for source in sources}

    def _check_targets(self) -> None:
        for name, target in self.targets.items():
            if isinstance(target, Text):
                raise ValueError(f"target {name!r} is Text: predict a Box or a Discrete instead")
            if isinstance(target, Box) and target.delta:
                source = self.observation.get(name)
                if not isinstance(source, Box) or source.shape != target.shape:
                    raise ValueError(
                        f"target {name!r} is a delta: declare observation {name!r} as a Box of "
                        f"shape {target.shape}"
                    )

    def _declare_earlier_fields(self) -> None:
        for name, least, most in (
            ("history", 1, MAX_HISTORY),
            ("rollout_steps", 0, MAX_ROLLOUT_STEPS),
        ):
            count: object = getattr(self, name)
            if type(count) is not int or not least <= count <= most:
                limit = f" and at most {most}" if most < math.inf else ""
                raise ValueError(
                    f"{name} must be a whole number of at least {least}{limit}, got {count!r:.60}"
                )
        if self.history == 1:
            return
        if both := sorted(self.observation.keys() & self.action.keys()):
            raise ValueError(
                f"with a history, rename the action {both[0]!r}: an observation has it"
            )
        fields = {**self.action, **self.observation}
        current = {name: self.observation[name] for name in self.current_fields}
        earlier = {name: fields[source] for name, (source, _) in self.earlier_fields.items()}
        object.__setattr__(self, "observation", current | earlier)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step: observation, action and result.

    Attributes:
        group: Episode, task or conversation: the unit of the held-out split. A split by row
            would put steps of one group on both sides.
        observation: Field name to value, as declared by the `TransitionSpec`. A value that is None,
            NaN or absent is missing.
        action: The same for the action.
        reward: Scalar reward; must be finite.
        next_observation: Observation after the action. Targets are read from here.
        terminated: Whether the trajectory ended here.
        propensity: Probability with which the policy chose this action, in (0, 1]; None if no
            policy chose it. Without it, calibration fails when the policy changes.
        info: Further fields to keep that are neither input nor target.

    Raises:
        ValueError: The group is empty, the reward not finite, or the propensity outside (0, 1].
    """

    group: str
    observation: Mapping[str, FieldValue | None]
    action: Mapping[str, FieldValue | None]
    reward: float = 0.0
    next_observation: Mapping[str, FieldValue | None] = field(default_factory=dict)
    terminated: bool = False
    propensity: float | None = None
    info: Mapping[str, FieldValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.group:
            raise ValueError("a transition needs a group (episode, task, conversation)")
        try:
            finite = math.isfinite(self.reward)
        except OverflowError:  # an integer larger than any float
            finite = False
        if not finite:
            raise ValueError(f"reward must be finite, got {self.reward}")
        if self.propensity is not None and not 0.0 < self.propensity <= 1.0:
            raise ValueError(f"propensity must lie in (0, 1], got {self.propensity}")
