"""Whether environments repeat recorded steps; if not, what is the cause and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

from infrastructure.environments.course import Course, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Why recorded actions lead to other observations or rewards than the recorded ones.

    Attributes:
        event: Name of the warning.
        reason: What was observed.
        remedy: What to do.
    """

    event: str
    reason: str
    remedy: str


NOT_DETERMINISTIC = Difference(
    event="environment_not_deterministic",
    reason="the same actions, after a reset with the same seed, led to different observations or "
    "rewards",
    remedy="draw the environment's random numbers from its np_random alone",
)
KEEPS_STATE = Difference(
    event="environment_keeps_state",
    reason="new environments repeat the steps, and after a further reset with the same seed they "
    "do not: a wrapper keeps state over a reset, such as the running statistics of "
    "NormalizeObservation and NormalizeReward, which no checkpoint holds",
    remedy="normalise inside the model, with statistics in its buffers: checkpoints hold those",
)
CHANGED = Difference(
    event="recorded_rounds_differ",
    reason="the environments are deterministic, but the recorded observations or rewards are "
    "different: the environment was changed since, or records are lost",
    remedy="restore the environment that the run began with, or begin another run",
)


def repeated(
    recorded: Sequence[Step], make_course: Callable[[], Course], restart: Callable[[Course], Course]
) -> tuple[Course, Difference | None]:
    """Repeat the *recorded* steps in new environments, and again after a further reset.

    Args:
        make_course: Makes new environments and resets them with the seed of the recorded steps.
        restart: Resets the environments of a course with that seed.

    Returns:
        The course after the second repetition; the difference, None if there is none.
    """
    new = make_course()
    first = new.repeat(recorded)
    course = restart(new)
    second = course.repeat(recorded)
    if are_equal(first, recorded) and are_equal(first, second):
        return course, None
    another = make_course()
    in_others = another.repeat(recorded)
    another.environments.close()
    if not are_equal(first, in_others):
        return course, NOT_DETERMINISTIC
    return course, CHANGED if are_equal(first, second) else KEEPS_STATE


def are_equal(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Whether the same came out of all steps; NaN equals NaN."""
    return len(one) == len(other) and all(
        repr(first) == repr(second) for first, second in zip(one, other, strict=True)
    )


def environments_differ(one: Sequence[Step], other: Sequence[Step]) -> bool:
    """Whether the first difference of two tries lies in the environments, not in the actions."""
    for first, second in zip(chain.from_iterable(one), chain.from_iterable(other), strict=False):
        if repr(first) != repr(second):
            return (
                first is None
                or second is None
                or repr(first.observation) != repr(second.observation)
                or repr(first.action) == repr(second.action)
            )
    return False
