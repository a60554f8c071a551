"""Faults that the agent's edits did not make: other mutation operators, handwritten bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from benchmarks.se_darwin.calibration import all_candidates, check_predictions
from benchmarks.se_darwin.dataset import ExecutedBug
from benchmarks.se_darwin.learning import Scores, WorldModelScorer
from benchmarks.se_darwin.ranking import by_score, suspiciousness_of
from benchmarks.se_darwin.study import TrainedFold
from infrastructure.world_model.distributions import DiscreteDistribution
from infrastructure.world_model.distributions.metrics import auroc

Row = dict[str, str]


def generalization_rows(
    cases: Sequence[ExecutedBug], trained: Sequence[TrainedFold], fold_of: Mapping[str, int]
) -> list[Row]:
    """Return a row per kind of fault: how many an edit repairs, and after how many executions.

    The model that did not train on a case's module ranks it. Handwritten bugs are in no training
    data, so the first model ranks them.
    """
    kinds = Counter(case.bug.kind for case in cases)
    rows = []
    for kind in [*kinds, *(["all"] if len(kinds) > 1 else [])]:
        chosen = [case for case in cases if kind in (case.bug.kind, "all")]
        rows.append({"fault": kind, **_row(chosen, trained, fold_of)})
    return rows


def _row(
    cases: Sequence[ExecutedBug], trained: Sequence[TrainedFold], fold_of: Mapping[str, int]
) -> Row:
    sorted_by, ours, best = [], [], []
    expected, improved = [], []
    for case in cases:
        model = trained[fold_of.get(case.bug.module, 0)].ours["fp32"].model
        scores = WorldModelScorer(model=model).score(case.replay)
        rows = check_predictions(model, all_candidates([case]))
        best.append(float(rows.probability.max()))
        predicted = model.predict_transitions(all_candidates([case]))["outcome"]
        if isinstance(predicted, DiscreteDistribution):
            expected.append((predicted.probabilities[:, 2] + predicted.probabilities[:, 3]).numpy())
        improved += [outcome in ("better", "fixed") for outcome in case.replay.outcomes]
        if "fixed" in case.replay.outcomes:
            ours.append(by_score(scores, case.replay))
            sorted_by.append(by_score(suspiciousness_of(case.replay), case.replay))
    return {
        "bugs": str(len(cases)),
        "candidates": f"{np.mean([len(case.replay.outcomes) for case in cases]):.0f}",
        "repaired_by_one_edit": str(len(ours)),
        "ochiai_mean": f"{np.mean(sorted_by):.1f}" if ours else "",
        "ours_mean": f"{np.mean(ours):.1f}" if ours else "",
        "ours_median": f"{np.median(ours):.0f}" if ours else "",
        "highest_p_repair": f"{np.mean(best):.3f}",
        "auroc_improves": f"{_auroc(np.concatenate(expected), improved):.3f}",
    }


def _auroc(expected: Scores, improved: Sequence[bool]) -> float:
    return auroc(torch.from_numpy(expected), torch.tensor(improved))
