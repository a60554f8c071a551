"""Beam search over sequences of candidate actions.

Shapes: M members, D starts of each, W kept partial plans, K candidates, X columns of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from infrastructure.world_model.planning.dynamics import ActionRows, Dynamics
from infrastructure.world_model.planning.returns import Scores, step_rewards
from infrastructure.world_model.planning.rollouts import imagine
from infrastructure.world_model.planning.settings import PlanSettings

_TIE = 1e-9  # share of the scores' range by which equal plans are told apart at random
_MOST_ROWS = 1 << 13  # imagined at once: bounds the memory, and the time between looks at the clock


@dataclass(frozen=True, kw_only=True, slots=True)
class Path:
    """Result of a search.

    Attributes:
        choices: Position of each step's action among the candidates.
        expected_return, sd: Mean and standard deviation of the return over the members.
        evaluations: Steps that were predicted.
        cut: Whether the deadline ended the search before the horizon.
    """

    choices: Sequence[int]
    expected_return: float
    sd: float
    evaluations: int
    cut: bool


def beam_search(
    dynamics: Dynamics,
    state_MDX: Tensor,
    candidates: ActionRows,
    horizon: int,
    settings: PlanSettings,
    *,
    generator: torch.Generator,
    quantiles_MDX: Tensor | None = None,
    places_MD: Tensor | None = None,
    previous: Sequence[int] = (),
    in_time: Callable[[], bool] = lambda: True,
) -> Path:
    """Extend the best partial plans by every candidate, step by step.

    Args:
        state_MDX: Starts, float64.
        candidates: Actions to choose from, as one step of K rows.
        generator: CPU generator that decides between equal plans.
        quantiles_MDX: For the first step; see `Dynamics.step`.
        places_MD: See `imagine`.
        previous: Choices that are kept in the beam as long as they last.
        in_time: Asked often after the first step; at False the search ends with the last whole one.
    """
    count, draws = candidates.raw.shape[-2], state_MDX.shape[1]
    state_MDWX = state_MDX[:, :, None]
    return_MDW = torch.zeros(*state_MDX.shape[:2], 1, dtype=torch.float64)
    alive_MDW: Tensor | None = None
    parents, choices = list[Tensor](), list[Tensor]()
    kept = 0  # where `previous` is in the beam
    sizes = (draws, -1)
    evaluations, cut = 0, False

    def extend(rows_N: Tensor, step: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """Returns, states and lives of extended plans; *rows_N* counts through the candidates."""
        parents_N, actions = rows_N // count, candidates.take((rows_N % count).repeat(draws))
        imagined = imagine(
            dynamics,
            state_MDWX[:, :, parents_N].flatten(1, 2),
            actions,
            quantiles_MDX=None if step else quantiles_MDX,
            places_MD=places_MD,
            alive_MN=None if alive_MDW is None else alive_MDW[:, :, parents_N].flatten(1, 2),
        )
        if imagined is None:
            raise RuntimeError("nothing ends a step")
        reward_MDN = step_rewards(dynamics, imagined, settings)[0].unflatten(1, sizes)
        return_MDN = return_MDW[:, :, parents_N] + settings.discount**step * reward_MDN
        alive = None if imagined.alive is None else imagined.alive[-1].unflatten(1, sizes)
        return return_MDN, imagined.states[-1].unflatten(1, sizes), alive

    for step in range(horizon):
        rows = state_MDWX.shape[2] * count
        returns = list[Tensor]()
        for rows_N in torch.arange(rows).split(max(1, _MOST_ROWS // draws)):
            if step and not in_time():
                cut = True
                break
            return_MDN, state_MDNX, alive_MDN = extend(rows_N, step)
            returns.append(return_MDN)
        if cut:
            break
        evaluations += rows * draws
        score_N = Scores.of(torch.cat(returns, dim=2).flatten(0, 1), settings.penalty).score
        best_W = _best(score_N, min(settings.beam_width, rows), generator)
        if step < len(previous):
            wanted = kept * count + previous[step]
            found = (best_W == wanted).nonzero()
            kept = int(found[0]) if len(found) else len(best_W) - 1
            best_W[kept] = wanted
        parents.append(best_W // count)
        choices.append(best_W % count)
        chosen_W = best_W
        if len(returns) > 1:  # the states of all would not fit into memory
            return_MDN, state_MDNX, alive_MDN = extend(best_W, step)
            chosen_W = torch.arange(len(best_W))
        state_MDWX, return_MDW = state_MDNX[:, :, chosen_W], return_MDN[:, :, chosen_W]
        alive_MDW = None if alive_MDN is None else alive_MDN[:, :, chosen_W]
    scores = Scores.of(return_MDW.flatten(0, 1), settings.penalty)
    best = int(scores.score.argmax())
    path, row = list[int](), best
    for parents_W, choices_W in zip(reversed(parents), reversed(choices), strict=True):
        path.append(int(choices_W[row]))
        row = int(parents_W[row])
    return Path(
        choices=path[::-1],
        expected_return=float(scores.mean[best]),
        sd=float(scores.sd[best]),
        evaluations=evaluations,
        cut=cut,
    )


def _best(score_N: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows with the highest scores, best first; equal ones in random order."""
    jitter_N = torch.rand(len(score_N), generator=generator, dtype=torch.float64)
    finite_N = score_N.isfinite()
    if not bool(finite_N.any()):
        return jitter_N.topk(count).indices
    # What is forbidden, by a reward of minus infinity, says nothing about ties of the others.
    span = (score_N[finite_N].max() - score_N[finite_N].min()).clamp(min=1e-12)
    return (score_N + _TIE * span * jitter_N).topk(count).indices
