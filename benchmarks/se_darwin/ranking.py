"""One-edit bugs: how many candidates a policy runs before the repair, replayed exactly."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np

from agents.se_darwin.features import NUMBERS
from agents.se_darwin.search.evolution import MIN_WEIGHT
from benchmarks.se_darwin.learning import Scores
from benchmarks.se_darwin.replay import ReplayTask

DRAWS = 10
"""Of policies that draw; the mean counts."""

_SUSPICION = NUMBERS.index("suspiciousness")

Count = Callable[[ReplayTask], float]


def suspicions(task: ReplayTask) -> Scores:
    """Ochiai suspiciousness of the line that each candidate changes."""
    return np.array([action["numbers"][_SUSPICION] for action in task.actions])  # type: ignore[index]


def by_score(scores: Scores, task: ReplayTask) -> float:
    """Executions in order of score, ties as they came."""
    return float(task.executions_in(np.argsort(-scores, kind="stable").tolist()))


def by_decayed_place(scores: Scores, task: ReplayTask) -> float:
    """The same, but each failure at a node multiplies the places of its other candidates."""
    places = np.argsort(np.argsort(-scores, kind="stable")) + 1.0
    nodes = np.array(task.nodes)
    failures: Counter[int] = Counter()
    for executed in range(1, len(places) + 1):
        chosen = int(np.argmin(places))
        if task.outcomes[chosen] == "fixed":
            return float(executed)
        node = int(nodes[chosen])
        failures[node] += 1
        places[nodes == node] *= (1 + failures[node]) / failures[node]
        places[chosen] = np.inf
    return float(len(places))


def by_chance(task: ReplayTask) -> float:
    """In any order."""
    rng = Random(f"random/{task.name}")
    return _mean_over_draws(rng.random, len(task.actions), task)


def as_genprog_does(task: ReplayTask) -> float:
    """Nodes drawn by suspiciousness, their candidates evenly; what the agent does untaught."""
    alternatives = Counter(task.nodes)
    suspicion = suspicions(task)
    weights = [
        (value**2 + MIN_WEIGHT) / alternatives[node]
        for value, node in zip(suspicion, task.nodes, strict=True)
    ]
    rng = Random(f"genprog/{task.name}")
    draws = []
    for _ in range(DRAWS):
        keys = [rng.random() ** (1.0 / weight) for weight in weights]
        draws.append(by_score(np.array(keys), task))
    return sum(draws) / DRAWS


def untaught() -> dict[str, Count]:
    """The policies that learn nothing."""
    return {
        "random": by_chance,
        "GenProg-like": as_genprog_does,
        "Ochiai sorted": lambda task: by_score(suspicions(task), task),
        "Ochiai, node decay": lambda task: by_decayed_place(suspicions(task), task),
    }


def repairable(tasks: Sequence[ReplayTask]) -> list[int]:
    """Positions of the tasks that a single edit repairs; the others tell nothing of a ranking."""
    return [place for place, task in enumerate(tasks) if "fixed" in task.outcomes]


def first_repairs(
    scores: Mapping[int, Scores], tasks: Sequence[ReplayTask]
) -> list[tuple[int, str]]:
    """Position and source of the repair that each ranking finds first."""
    found = defaultdict[int, str](str)
    for place, score in scores.items():
        for index in np.argsort(-score, kind="stable"):
            if int(index) in tasks[place].repairs:
                found[place] = tasks[place].repairs[int(index)]
                break
    return sorted(found.items())


def _mean_over_draws(draw: Callable[[], float], count: int, task: ReplayTask) -> float:
    return sum(by_score(np.array([draw() for _ in range(count)]), task) for _ in range(DRAWS)) / (
        DRAWS
    )
