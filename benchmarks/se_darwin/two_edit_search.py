"""Two-edit bugs: the agent's search with different rankers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from agents.se_darwin.features import Fields
from agents.se_darwin.sandbox import Sandbox
from agents.se_darwin.search.ranker import RandomRanker, Ranker, SuspicionRanker
from benchmarks.se_darwin.bugs import Bug
from benchmarks.se_darwin.learning import Scorer, WorldModelScorer
from benchmarks.se_darwin.replay import ReplayTask
from benchmarks.se_darwin.searching import search
from benchmarks.se_darwin.study import TrainedFold

MOST_EXECUTIONS = 200

OCHIAI = "Ochiai"
OURS = "ours"


@dataclass(frozen=True, kw_only=True, slots=True)
class ScoreRanker:
    """Estimates chances by a learned score, the log-odds of a repair."""

    scorer: Scorer

    def success_chances(self, observation: Fields, actions: Sequence[Fields]) -> list[float]:
        """See `Ranker`."""
        task = ReplayTask(name="", observation=observation, actions=tuple(actions), outcomes=())
        chances: list[float] = (1.0 / (1.0 + np.exp(-self.scorer.score(task)))).tolist()
        return chances


def rankers(trained: TrainedFold) -> dict[str, Ranker]:
    """Return rankers by name; all go through the same search."""
    return {
        "random": RandomRanker(),
        OCHIAI: SuspicionRanker(),
        "logistic": ScoreRanker(scorer=trained.rivals["logistic"]),
        OURS: ScoreRanker(scorer=WorldModelScorer(model=trained.ours["fp32"].model)),
    }


def search_all(
    sandbox: Sandbox,
    bugs: Sequence[Bug],
    trained: Sequence[TrainedFold],
    fold_of: Mapping[str, int],
    seed: int,
) -> dict[str, list[tuple[int, str] | None]]:
    """Return each ranker's results by bug; the model that did not train on a bug ranks it."""
    by_fold = [rankers(item) for item in trained]
    return {
        name: [
            search(
                sandbox,
                bug,
                by_fold[fold_of[bug.module]][name],
                budget=MOST_EXECUTIONS,
                seed=seed,
            )
            for bug in bugs
        ]
        for name in by_fold[0]
    }
