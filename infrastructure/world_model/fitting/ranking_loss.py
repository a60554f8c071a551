"""How well a model ranks successes above the competing actions tried in the same state.

The negative log-likelihood of a conditional logit over the actions of each state. A likelihood
over all rows also rewards telling hopeless states from promising ones, and where success is rare
it rewards little else.

Shapes: N rows, S states.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Transition

RANKING_WEIGHT = 0.1
"""Weight of `ranking_nll` beside a likelihood, which keeps probabilities on their scale."""

MIN_RANKABLE_STATES = 10
"""With fewer states, the measured value is noise."""

_NEVER = -1e9


def number_states(transitions: Sequence[Transition]) -> Tensor:
    """Number the states, ``[N]`` int64: equal where group and observation are equal."""
    numbers: dict[tuple[str, str], int] = {}
    keys: dict[int, tuple[str, str]] = {}  # many transitions share one observation object
    states = []
    for transition in transitions:
        observation = transition.observation
        key = keys.get(id(observation))
        if key is None:
            key = keys[id(observation)] = (transition.group, repr(sorted(observation.items())))
        states.append(numbers.setdefault(key, len(numbers)))
    return torch.tensor(states, dtype=torch.int64)


def ranking_nll(log_odds_N: Tensor, succeeded_N: Tensor, state_N: Tensor) -> Tensor:
    """Return the mean over rankable states of ``-log(share of the odds on successes)``, ``[]``.

    Differentiable; 0 if no state is rankable.

    Args:
        log_odds_N: Log-odds of success; a constant added to all rows of a state has no effect.
        succeeded_N: Observed success, bool.
        state_N: Numbers from `number_states`.
    """
    nll_S, rankable_S = ranking_nlls(log_odds_N, succeeded_N, state_N)
    if not bool(rankable_S.any()):
        return log_odds_N.sum() * 0.0
    return nll_S[rankable_S].mean()


def ranking_nlls(log_odds_N: Tensor, succeeded_N: Tensor, state_N: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``-log(share of the odds on successes)`` and whether it is rankable, by state."""
    states = _count(state_N)
    total_S = _logsumexp(log_odds_N, state_N, states)
    succeeded_S = _logsumexp(log_odds_N.where(succeeded_N, _NEVER), state_N, states)
    return total_S - succeeded_S, _is_rankable(succeeded_N, state_N, states)


def _count(state_N: Tensor) -> int:
    return int(state_N.max()) + 1 if len(state_N) else 0


def _is_rankable(succeeded_N: Tensor, state_N: Tensor, states: int) -> Tensor:
    zeros_S = torch.zeros(states, dtype=torch.int64)
    successes_S = zeros_S.index_add_(0, state_N, succeeded_N.long())
    rows_S = state_N.bincount(minlength=states)
    return (successes_S > 0) & (successes_S < rows_S)


def _logsumexp(values_N: Tensor, state_N: Tensor, states: int) -> Tensor:
    """Log of the sum of exponentials of each state, ``[S]``."""
    lowest_S = torch.full((states,), _NEVER, dtype=values_N.dtype)
    largest_S = lowest_S.scatter_reduce(0, state_N, values_N.detach(), "amax")
    sum_S = torch.zeros(states, dtype=values_N.dtype)
    sum_S = sum_S.index_add(0, state_N, (values_N - largest_S[state_N]).exp())
    return largest_S + sum_S.clamp(min=1e-30).log()
