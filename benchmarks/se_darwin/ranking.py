"""One-edit bugs: number of candidates that a policy runs until the repair, replayed exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from agents.se_darwin.features import NUMBERS
from agents.se_darwin.search.ranker import MIN_SUSPICION
from benchmarks.se_darwin.learning import Scores
from benchmarks.se_darwin.replay import ReplayTask

DRAWS = 10
"""Draws of a random policy; their mean counts."""

_SUSPICIOUSNESS = NUMBERS.index("suspiciousness")

Count = Callable[[ReplayTask], float]


def suspiciousness_of(task: ReplayTask) -> Scores:
    """Return the Ochiai suspiciousness of the line that each candidate changes."""
    return np.array([action["numbers"][_SUSPICIOUSNESS] for action in task.actions])  # type: ignore[index]


def by_score(scores: Scores, task: ReplayTask) -> float:
    """Count executions in order of score; ties keep their order."""
    return float(task.executions_in(np.argsort(-scores, kind="stable").tolist()))


def by_decayed_rank(scores: Scores, task: ReplayTask) -> float:
    """Count executions in order of rank; failures at a node multiply the ranks of its others."""
    ranks = np.argsort(np.argsort(-scores, kind="stable")) + 1.0
    nodes = np.array(task.nodes)
    failures: Counter[int] = Counter()
    for executed in range(1, len(ranks) + 1):
        chosen = int(np.argmin(ranks))
        if task.outcomes[chosen] == "fixed":
            return float(executed)
        node = int(nodes[chosen])
        failures[node] += 1
        ranks[nodes == node] *= (1 + failures[node]) / failures[node]
        ranks[chosen] = np.inf
    return float(len(ranks))


def by_random_order(task: ReplayTask) -> float:
    """Count executions in random order."""
    rng = Random(f"random/{task.name}")
    return _mean_over_draws(rng.random, len(task.actions), task)


def by_genprog_weights(task: ReplayTask) -> float:
    """Draw nodes by suspiciousness, their candidates uniformly, as in GenProg."""
    alternatives = Counter(task.nodes)
    suspiciousness = suspiciousness_of(task)
    weights = [
        (value**2 + MIN_SUSPICION) / alternatives[node]
        for value, node in zip(suspiciousness, task.nodes, strict=True)
    ]
    rng = Random(f"genprog/{task.name}")
    draws = []
    for _ in range(DRAWS):
        keys = [rng.random() ** (1.0 / weight) for weight in weights]
        draws.append(by_score(np.array(keys), task))
    return sum(draws) / DRAWS


def untrained_policies() -> dict[str, Count]:
    """Return the policies without training."""
    return {
        "random": by_random_order,
        "GenProg-like": by_genprog_weights,
        "Ochiai sorted": lambda task: by_score(suspiciousness_of(task), task),
        "Ochiai, node decay": lambda task: by_decayed_rank(suspiciousness_of(task), task),
    }


def first_repairs(
    scores: Mapping[int, Scores], tasks: Sequence[ReplayTask]
) -> list[tuple[int, str]]:
    """Return task position and source of the repair that each ranking finds first."""
    found = defaultdict[int, str](str)
    for position, score in scores.items():
        for index in np.argsort(-score, kind="stable"):
            if int(index) in tasks[position].repairs:
                found[position] = tasks[position].repairs[int(index)]
                break
    return sorted(found.items())


def _mean_over_draws(draw: Callable[[], float], count: int, task: ReplayTask) -> float:
    return sum(by_score(np.array([draw() for _ in range(count)]), task) for _ in range(DRAWS)) / (
        DRAWS
    )
