"""How well what succeeds is told from its rivals: the other actions tried in the same state.

That is what a ranking needs. A likelihood over all rows also pays for telling hopeless states
from hopeful ones, and where success is rare it pays for little else.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from infrastructure.agent_contract.transition import Transition

CHOICE_WEIGHT = 0.1
"""Weight of `choice_nll` beside a likelihood, which keeps probabilities on their scale."""

MIN_CHOICES = 10
"""With fewer states to choose in, what is measured is noise."""

_NEVER = -1e9


def number_states(transitions: Sequence[Transition]) -> Tensor:
    """``[N]`` int64: equal where group and observation are, so for actions that are rivals."""
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


def count_choices(succeeded_N: Tensor, state_N: Tensor) -> int:
    """States in which one action succeeded and another did not."""
    return int(_has_choice(succeeded_N, state_N, _states(state_N)).sum())


def choice_nll(log_odds_N: Tensor, succeeded_N: Tensor, state_N: Tensor) -> Tensor:
    """Mean over states with a choice of ``-log(share of the odds that succeeded)``; ``[]``.

    Args:
        log_odds_N: Of success, any constant per state added.
        succeeded_N: Bool.
        state_N: Of `number_states`.

    Returns:
        Scalar, differentiable; 0 where no state has a choice.
    """
    states = _states(state_N)
    has_S = _has_choice(succeeded_N, state_N, states)
    if not bool(has_S.any()):
        return log_odds_N.sum() * 0.0
    total_S = _log_sum(log_odds_N, state_N, states)
    good_S = _log_sum(log_odds_N.where(succeeded_N, _NEVER), state_N, states)
    return (total_S - good_S)[has_S].mean()


def _states(state_N: Tensor) -> int:
    return int(state_N.max()) + 1 if len(state_N) else 0


def _has_choice(succeeded_N: Tensor, state_N: Tensor, states: int) -> Tensor:
    good_S = torch.zeros(states, dtype=torch.int64).index_add_(0, state_N, succeeded_N.long())
    all_S = state_N.bincount(minlength=states)
    return (good_S > 0) & (good_S < all_S)


def _log_sum(values_N: Tensor, state_N: Tensor, states: int) -> Tensor:
    """Log of the sum of exponentials of each state, ``[S]``."""
    lowest_S = torch.full((states,), _NEVER, dtype=values_N.dtype)
    most_S = lowest_S.scatter_reduce(0, state_N, values_N.detach(), "amax")
    sum_S = torch.zeros(states, dtype=values_N.dtype)
    sum_S = sum_S.index_add(0, state_N, (values_N - most_S[state_N]).exp())
    return most_S + sum_S.clamp(min=1e-30).log()
