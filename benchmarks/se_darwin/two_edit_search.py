"""Two-edit bugs: the agent's search with different policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from agents.se_darwin.collection import IDLE_GENERATIONS
from agents.se_darwin.features import Fields
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.evolution import Evolution
from agents.se_darwin.search.policy import Policy
from benchmarks.se_darwin.bugs import Bug
from benchmarks.se_darwin.learning import Scorer, WorldModelScorer
from benchmarks.se_darwin.replay import ReplayTask, SuspiciousnessRanker
from benchmarks.se_darwin.study import TrainedFold

MOST_EXECUTIONS = 200
BATCH = 4
EPSILON = 0.02

OCHIAI = "Ochiai, node decay"
OURS = "ours sorted"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRanker:
    """Ranks by a learned score."""

    scorer: Scorer

    def rank(self, observation: Fields, actions: Sequence[Fields]) -> list[int]:
        """Return positions in *actions*, best first."""
        task = ReplayTask(name="", observation=observation, actions=tuple(actions), outcomes=())
        order: list[int] = np.argsort(-self.scorer.score(task), kind="stable").tolist()
        return order


def policies(trained: TrainedFold) -> dict[str, Policy]:
    """Return policies with the same archive, operators, batch size and epsilon."""
    ours = ScoreRanker(scorer=WorldModelScorer(model=trained.ours["fp32"].model))
    logistic = ScoreRanker(scorer=trained.rivals["logistic"])
    found = {"GenProg-like": Policy(batch=BATCH, epsilon=EPSILON)}
    for name, ranker in (
        ("Ochiai", SuspiciousnessRanker()),
        ("logistic", logistic),
        ("ours", ours),
    ):
        for decay in (False, True):
            key = f"{name}, node decay" if decay else f"{name} sorted"
            found[key] = Policy(ranker=ranker, batch=BATCH, epsilon=EPSILON, node_decay=decay)
    return found


def search(sandbox: Sandbox, bug: Bug, policy: Policy, seed: int) -> tuple[int, str] | None:
    """Return executions until the repair and its source; None if the budget ends before."""
    rng = Random(f"{seed}/{bug.task.name}")
    evolution = Evolution(bug.task, sandbox, rng, policy)
    idle = 0
    while evolution.evaluations < MOST_EXECUTIONS and idle < IDLE_GENERATIONS:
        before = evolution.evaluations
        outcomes = evolution.run_generation(MOST_EXECUTIONS - before)
        idle = 0 if outcomes else idle + 1
        for number, outcome in enumerate(outcomes, 1):
            if outcome.child.fixed:
                return before + number, outcome.child.source
    return None


def search_all(
    sandbox: Sandbox,
    bugs: Sequence[Bug],
    trained: Sequence[TrainedFold],
    fold_of: Mapping[str, int],
    seed: int,
) -> dict[str, list[tuple[int, str] | None]]:
    """Return each policy's results by bug; the model that did not train on a bug ranks it."""
    by_fold = [policies(item) for item in trained]
    return {
        name: [search(sandbox, bug, by_fold[fold_of[bug.module]][name], seed) for bug in bugs]
        for name in by_fold[0]
    }
