"""Options of a search for a plan, and the plan that it found."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real

from infrastructure.agent_contract.transition import FieldValue
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.planning.rollouts import (
    RewardFunction,
    check_count,
    check_reward,
    is_sequence,
)

_REDDEST = 10.0  # noise whose spectrum is steeper is one slow wave; powers of it overflow

Bounds = tuple[float | Sequence[float], float | Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSettings:
    """Options of `WorldModel.plan`.

    A plan's score is the mean over the members of the return that each predicts, minus `penalty`
    times their standard deviation. If the observation or an action lacks a known value, each
    member predicts from several values of it, which count like members.

    Attributes:
        reward: Function of observation, action and next observation; None for the learned reward
            (``improvement`` of the spec, ``reward`` by default).
        candidates: Actions to choose from at each step, of any types; None for all labels of
            `Discrete` actions, or for the bounds of `Box` actions.
        bounds: Lowest and highest value of a `Box` action, by name, as numbers or per dimension;
            by default the range in the training data.
        penalty: Price of disagreement, in standard deviations of the return.
        discount: Factor of the reward with each step.
        hold: Fields of the observation that are not targets and keep their values.
        samples: Plans in the first of the iterations over `Box` actions; each further one has a
            fifth fewer.
        iterations: Iterations over `Box` actions.
        elites: Best plans of an iteration, which the next one is drawn around.
        noise_colour: Exponent of the noise's spectrum: 0 is white, 2 red, which varies slowly.
        beam_width: Partial plans that are kept at each step over `Discrete` actions or candidates.

    Raises:
        ValueError: A value is of another type or out of range.
    """

    reward: RewardFunction | None = None
    candidates: Sequence[Values] | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    penalty: float = 0.0
    discount: float = 1.0
    hold: Sequence[str] = ()
    samples: int = 128
    iterations: int = 3
    elites: int = 10
    noise_colour: float = 2.0
    beam_width: int = 32

    def __post_init__(self) -> None:
        for name in ("samples", "iterations", "elites", "beam_width"):
            check_count(name, getattr(self, name))
        if self.elites > self.samples:
            raise ValueError(
                f"elites must be at most samples, got {self.elites} and {self.samples}"
            )
        ends = {"penalty": math.inf, "noise_colour": _REDDEST, "discount": 1.0}
        for name, most in ends.items():
            number = getattr(self, name)
            is_number = isinstance(number, Real) and not isinstance(number, bool)
            is_number = is_number and 0 <= number <= min(most, sys.float_info.max)
            if not (is_number and (number or name != "discount")):
                bound = "in (0, 1]" if name == "discount" else "finite and at least 0"
                bound += f" and at most {most:g}" if name == "noise_colour" else ""
                raise ValueError(f"{name} must be {bound}, got {number!r:.60}")
        check_reward(self.reward)
        if not isinstance(self.bounds, Mapping):
            raise ValueError(
                f"bounds must map actions to pairs of numbers, such as {{'u': (-1, 1)}}, got "
                f"{self.bounds!r:.60}"
            )
        for name, pair in self.bounds.items():
            if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
                raise ValueError(
                    f"bounds of {name!r} must be a pair of the lowest and the highest value, got "
                    f"{pair!r:.60}"
                )
        if self.candidates is None:
            return
        if not (is_sequence(self.candidates) and self.candidates):
            raise ValueError(
                f"candidates must be a list of at least one action, got {self.candidates!r:.60}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Actions to take, the first of them now.

    Attributes:
        actions: Values of each step's action, as recorded.
        expected_return: Mean over the members of the (discounted) return.
        sd: Standard deviation of the return between the members, and between the values drawn for
            what the observation lacks; 0 for one member and no gap.
        evaluations: Steps that were predicted, over all plans; each by all members.
        cut: Whether the deadline ended the search. The plan is the best of those evaluated so far;
            a beam's plan then has fewer actions.
        warnings: What is odd about the observation and the actions; see `Prediction.warnings`.
    """

    actions: Sequence[Mapping[str, FieldValue]]
    expected_return: float
    sd: float
    evaluations: int
    cut: bool
    warnings: Sequence[str] = ()
