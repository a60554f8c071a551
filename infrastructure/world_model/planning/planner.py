"""`Planner`: plans by model-predictive control, from call to call."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import cast

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import (
    MAX_ROLLOUT_STEPS,
    Box,
    Discrete,
    FieldValue,
    TransitionSpec,
)
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.fitting import FittedModel
from infrastructure.world_model.planning.beam import Path, beam_search
from infrastructure.world_model.planning.dynamics import Dynamics
from infrastructure.world_model.planning.icem import Found, Icem
from infrastructure.world_model.planning.layout import Layout, as_tensor
from infrastructure.world_model.planning.returns import Scores, discounted_sum, step_rewards
from infrastructure.world_model.planning.rollouts import MAX_SEED, check_count, imagine
from infrastructure.world_model.planning.settings import Plan, PlanSettings

MAX_LABEL_COMBINATIONS = 4096

GAP_DRAWS = 8
"""Starts of each member if the observation or a candidate lacks a known value."""


class Planner:
    """Finds the actions with the highest return that a model predicts.

    `Box` actions are planned by iCEM, `Discrete` ones and candidates by beam search. The model
    predicts means; each member of the ensemble imagines a plan alone. The previous plan, shifted
    by one step, is where the next call begins: take the first action, observe, and call again.

    Args:
        model: Fitted model. Its network computes in FP32 on the CPU.
        horizon: Steps of a plan.
        settings: Options of the search.
        reward: Learned target that is the reward; None if ``settings.reward`` computes it.
        seed: Seed of the search's noise.
        clock: Function that returns seconds, for the deadline.

    Raises:
        ValueError: An argument is of another type or out of range; the model cannot be rolled out;
            there is no reward; or the actions have neither bounds nor candidates, or are of mixed
            types without candidates.
    """

    def __init__(
        self,
        model: FittedModel,
        horizon: int,
        settings: PlanSettings,
        *,
        reward: str | None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_count("horizon", horizon, most=MAX_ROLLOUT_STEPS)
        check_count("seed", seed, least=0, most=MAX_SEED)
        if not isinstance(settings, PlanSettings):
            raise ValueError(f"settings must be PlanSettings, got {settings!r:.60}")
        if reward is None and settings.reward is None:
            raise ValueError(
                "nothing says what a plan is for: declare a target reward, the spec's improvement, "
                "or PlanSettings.reward"
            )
        self._horizon, self._settings, self._clock = horizon, settings, clock
        self._generator = torch.Generator().manual_seed(seed)
        self._gaps = torch.Generator().manual_seed(seed)
        self._dynamics = Dynamics(
            model, reward=None if settings.reward else reward, hold=settings.hold
        )
        self._found: Found | None = None
        self._path: Sequence[int] = ()
        self._acts_unknown = False
        candidates = settings.candidates
        if candidates is None and _all_boxes(model.spec):
            low_A, high_A = _bounds(model, self._dynamics.action, settings)
            self._middle, self._half = (low_A + high_A) / 2, (high_A - low_A) / 2
            self._candidates: Sequence[Values] = ()
            return
        if candidates is None:
            candidates = _label_combinations(model.spec)
        self._candidates = candidates
        self._encoded = self._dynamics.encode_values(candidates)
        self._acts_unknown = self._encoded.unknown is not None

    def reset(self) -> None:
        """Forget the previous plan, as at the start of an episode."""
        self._found, self._path = None, ()

    @torch.inference_mode()
    def plan(self, observation: Values, deadline: float | None = None) -> Plan:
        """Plan from *observation*.

        Args:
            observation: Current observation, as recorded.
            deadline: Seconds after which the best plan so far is returned; None for no limit. At
                least one iteration of iCEM, or one step of the beam, is evaluated.

        Raises:
            ValueError: A field of the observation is of another type or shape, or infinite; the
                reward function's result does not fit; or *deadline* is not a number of at least 0.
        """
        is_number = isinstance(deadline, Real) and not isinstance(deadline, bool)
        if deadline is not None and not (is_number and deadline >= 0):
            raise ValueError(
                f"deadline must be seconds, at least 0, or None for no limit, got {deadline!r:.60}"
            )
        end = None
        if deadline is not None:
            end = self._clock() + min(deadline, sys.float_info.max)

        def in_time() -> bool:
            return end is None or self._clock() < end

        starts = self._starts(observation)
        plan = (self._choose if self._candidates else self._optimise)(*starts, in_time)
        near_H = self._dynamics.is_in_range(
            self._dynamics.read([observation]), self._dynamics.action.read(plan.actions)
        )
        warnings = self._dynamics.warnings(
            observation,
            plan.actions,
            is_in_range=bool(near_H.all()),
            steps=self._horizon,
        )
        return replace(plan, warnings=warnings)

    def _starts(self, observation: Values) -> tuple[Tensor, Tensor | None]:
        """Starts of each member, ``[M, D, X]``: one, or `GAP_DRAWS` if a value is not known.

        A value that stays missing, because the model has learned what a gap means, differs from
        the first step on: by the quantiles that are returned besides, see `Dynamics.step`.
        """
        dynamics, members = self._dynamics, self._dynamics.members
        start_1X = dynamics.start([observation])
        drawn = dynamics.draw_starts([observation], start_1X, members * GAP_DRAWS, self._gaps)
        lacks = bool(dynamics.lacks(start_1X if drawn is None else drawn).any())
        quantiles = dynamics.draw_quantiles(GAP_DRAWS, self._gaps) if lacks else None
        if drawn is None:
            draws = GAP_DRAWS if lacks or self._acts_unknown else 1
            return start_1X.expand(members, draws, -1), quantiles
        return drawn[:, 0].unflatten(0, (members, GAP_DRAWS)), quantiles

    def _choose(
        self, state_MDX: Tensor, quantiles_MDX: Tensor | None, in_time: Callable[[], bool]
    ) -> Plan:
        path = beam_search(
            self._dynamics,
            state_MDX,
            self._encoded,
            self._horizon,
            self._settings,
            generator=self._generator,
            quantiles_MDX=quantiles_MDX,
            places_MD=(
                self._dynamics.draw_places(state_MDX.shape[1], self._gaps)
                if self._acts_unknown
                else None
            ),
            previous=self._path[1:],
            in_time=in_time,
        )
        self._path = path.choices
        return _to_plan(path, self._candidates)

    def _optimise(
        self, state_MDX: Tensor, quantiles_MDX: Tensor | None, in_time: Callable[[], bool]
    ) -> Plan:
        settings, evaluations, draws = self._settings, 0, state_MDX.shape[1]

        def evaluate(plans_NHA: Tensor, may_end: bool) -> Scores | None:
            nonlocal evaluations
            raw_HNA = torch.addcmul(self._middle, plans_NHA.transpose(0, 1), self._half)
            actions = self._dynamics.encode_columns(raw_HNA.repeat(1, draws, 1))
            state_MNX = state_MDX.repeat_interleave(len(plans_NHA), dim=1)
            go_on = in_time if may_end else None
            imagined = imagine(
                self._dynamics, state_MNX, actions, quantiles_MDX=quantiles_MDX, go_on=go_on
            )
            if imagined is None:
                return None
            evaluations += raw_HNA.shape[1] * draws * self._horizon
            rewards_HMN = step_rewards(self._dynamics, imagined, settings)
            returns_MN = discounted_sum(rewards_HMN, settings.discount)
            return Scores.of(returns_MN.unflatten(1, (draws, -1)).flatten(0, 1), settings.penalty)

        search = Icem(
            horizon=self._horizon,
            width=len(self._middle),
            samples=settings.samples,
            iterations=settings.iterations,
            elites=settings.elites,
            noise_colour=settings.noise_colour,
        )
        found = search.search(evaluate, self._generator, self._found, in_time)
        self._found = found
        raw_HA = torch.addcmul(self._middle, found.best, self._half)
        return Plan(
            actions=[self._dynamics.action.values(row_A) for row_A in raw_HA],
            expected_return=found.expected_return,
            sd=found.sd,
            evaluations=evaluations,
            cut=found.cut,
        )


def _to_plan(path: Path, candidates: Sequence[Values]) -> Plan:
    return Plan(
        actions=[cast("Mapping[str, FieldValue]", candidates[choice]) for choice in path.choices],
        expected_return=path.expected_return,
        sd=path.sd,
        evaluations=path.evaluations,
        cut=path.cut,
    )


def _all_boxes(spec: TransitionSpec) -> bool:
    return bool(spec.action) and all(isinstance(field, Box) for field in spec.action.values())


def _label_combinations(spec: TransitionSpec) -> list[Values]:
    """All actions of a spec with `Discrete` actions alone.

    Raises:
        ValueError: Actions are of other types, or too many.
    """
    fields = spec.action
    if not fields or not all(isinstance(field, Discrete) for field in fields.values()):
        raise ValueError(
            "plans need Box actions alone, Discrete ones alone, or PlanSettings.candidates"
        )
    labels = [field.values for field in fields.values() if isinstance(field, Discrete)]
    combinations = list(itertools.islice(itertools.product(*labels), MAX_LABEL_COMBINATIONS + 1))
    if len(combinations) > MAX_LABEL_COMBINATIONS:
        raise ValueError(
            f"the labels have more than {MAX_LABEL_COMBINATIONS} combinations: give "
            f"PlanSettings.candidates"
        )
    return [dict(zip(fields, combination, strict=True)) for combination in combinations]


def _bounds(model: FittedModel, layout: Layout, settings: PlanSettings) -> tuple[Tensor, Tensor]:
    """Lowest and highest action, ``[A]`` float64 each.

    Raises:
        ValueError: Bounds name another action, are not finite or in the wrong order.
    """
    if unknown := sorted(set(settings.bounds) - set(layout.fields)):
        raise ValueError(f"bounds name {unknown[0]!r}, which is not an action of the model")
    low_A = torch.zeros(layout.width, dtype=torch.float64)
    high_A = torch.zeros(layout.width, dtype=torch.float64)
    for name, columns in layout.columns.items():
        given = settings.bounds.get(name)
        if given is not None:
            low, high = (as_tensor(f"bounds of {name!r}", side, torch.float64) for side in given)
            if (
                low.ndim > 1
                or high.ndim > 1
                or not {low.numel(), high.numel()}
                <= {
                    1,
                    columns.stop - columns.start,
                }
            ):
                raise ValueError(f"bounds of {name!r} must be numbers, or one per dimension")
        else:
            low, high = _trained_range(model, name)
        low_A[columns], high_A[columns] = low, high
    if not bool(((low_A < high_A) & low_A.isfinite() & high_A.isfinite()).all()):
        raise ValueError(
            f"bounds of the actions must be finite and ascending, got {low_A.tolist()} to "
            f"{high_A.tolist()}: set PlanSettings.bounds"
        )
    return low_A, high_A


def _trained_range(model: FittedModel, name: str) -> tuple[Tensor, Tensor]:
    standardiser = model.encoder.standardiser(f"action.{name}")
    if standardiser is None:
        raise ValueError(f"action {name!r} has no range: set PlanSettings.bounds")
    low = torch.tensor(standardiser.low, dtype=torch.float64)
    high = torch.tensor(standardiser.high, dtype=torch.float64)
    squeezed = torch.tensor(standardiser.symlog)
    expanded = [side.sign() * side.abs().expm1() for side in (low, high)]
    return torch.where(squeezed, expanded[0], low), torch.where(squeezed, expanded[1], high)
