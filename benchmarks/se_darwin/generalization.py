"""Beyond the agent's own edits: foreign mutants, and bugs that people wrote."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from benchmarks.se_darwin.calibration import every, hold
from benchmarks.se_darwin.dataset import Case
from benchmarks.se_darwin.learning import Scores, WorldModelScorer
from benchmarks.se_darwin.ranking import by_score, suspicions
from benchmarks.se_darwin.study import Taught
from infrastructure.world_model.distributions import DiscreteDistribution
from infrastructure.world_model.distributions.metrics import auroc

Row = dict[str, str]


def open_world_rows(
    cases: Sequence[Case], taught: Sequence[Taught], fold_of: Mapping[str, int]
) -> list[Row]:
    """A row per kind of fault: how many an edit repairs, and how soon it is found.

    Each case is left to the model that learned nothing from its module; bugs written by hand
    are in no training data, and left to the first.
    """
    kinds = Counter(case.bug.kind for case in cases)
    rows = []
    for kind in [*kinds, *(["all"] if len(kinds) > 1 else [])]:
        chosen = [case for case in cases if kind in (case.bug.kind, "all")]
        rows.append({"fault": kind, **_row(chosen, taught, fold_of)})
    return rows


def _row(cases: Sequence[Case], taught: Sequence[Taught], fold_of: Mapping[str, int]) -> Row:
    sorted_by, ours, best = [], [], []
    expected, happened = [], []
    for case in cases:
        model = taught[fold_of.get(case.bug.module, 0)].ours["fp32"].model
        scores = WorldModelScorer(model=model).score(case.replay)
        rows = hold(model, every([case]))
        best.append(float(rows.probability.max()))
        predicted = model.predict_transitions(every([case]))["outcome"]
        if isinstance(predicted, DiscreteDistribution):
            expected.append((predicted.probabilities[:, 2] + predicted.probabilities[:, 3]).numpy())
        happened += [outcome in ("better", "fixed") for outcome in case.replay.outcomes]
        if "fixed" in case.replay.outcomes:
            ours.append(by_score(scores, case.replay))
            sorted_by.append(by_score(suspicions(case.replay), case.replay))
    return {
        "bugs": str(len(cases)),
        "candidates": f"{np.mean([len(case.replay.outcomes) for case in cases]):.0f}",
        "repaired_by_one_edit": str(len(ours)),
        "ochiai_mean": f"{np.mean(sorted_by):.1f}" if ours else "",
        "ours_mean": f"{np.mean(ours):.1f}" if ours else "",
        "ours_median": f"{np.median(ours):.0f}" if ours else "",
        "highest_p_repair": f"{np.mean(best):.3f}",
        "auroc_improves": f"{_auroc(np.concatenate(expected), happened):.3f}",
    }


def _auroc(expected: Scores, happened: Sequence[bool]) -> float:
    return auroc(torch.from_numpy(expected), torch.tensor(happened))
