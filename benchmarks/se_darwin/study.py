"""One-edit bugs, fold by fold: train on the other modules, rank the candidates of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.se_darwin.dataset import Dataset, Effort, ExecutedBug, Log
from benchmarks.se_darwin.learning import (
    Fold,
    Learned,
    RivalScorer,
    Scorer,
    Scores,
    WorldModelScorer,
    learn,
    learn_rivals,
    make_fold,
)
from benchmarks.se_darwin.ranking import by_decayed_rank, by_score, untrained_policies
from infrastructure.events.precision_state import PrecisionName

OURS = "ours fp32"
RIVALS = ("logistic", "boosting")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainedFold:
    """The models trained on one fold.

    Attributes:
        fold: The data.
        ours: World model by precision.
        rivals: Classifiers by name.
    """

    fold: Fold
    ours: Mapping[PrecisionName, Learned]
    rivals: Mapping[str, RivalScorer]

    def scorers(self) -> Iterator[tuple[str, Scorer]]:
        """Yield policy names and their scorers."""
        yield from self.rivals.items()
        for precision, learned in self.ours.items():
            yield f"ours {precision}", WorldModelScorer(model=learned.model)
        for family in ("linear", "ensemble"):
            model = self.ours["fp32"].families[family]
            yield f"{OURS}, {family} alone", WorldModelScorer(model=model)


@dataclass(kw_only=True, slots=True)
class Study:
    """Attributes:
    cases: Bugs that a single edit repairs.
    trained: Models by fold.
    scores: Scores of the candidates, by policy and case number.
    executions: Executions until the repair, by policy and case.
    """

    cases: Sequence[ExecutedBug]
    trained: list[TrainedFold] = field(default_factory=list)
    scores: dict[str, dict[int, Scores]] = field(default_factory=dict)
    executions: dict[str, list[float]] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """Module of each case."""
        return [case.bug.module for case in self.cases]


def train_folds(data: Dataset, effort: Effort, seed: int, log: Log) -> Iterator[TrainedFold]:
    """Train once per fold on the other folds; the fold's number is added to the seed."""
    for number in range(effort.folds):
        fold = make_fold(data.one_edit, data.fold_of, number)
        rows = len(fold.data.train.features)
        ours = learn(fold.data, effort.steps, seed + number)
        chosen = ", ".join(f"{name} {learned.chosen}" for name, learned in ours.items())
        log(f"  fold {number}: {rows} candidates to learn from; chosen families: {chosen}")
        yield TrainedFold(fold=fold, ours=ours, rivals=learn_rivals(fold.data, seed + number))


def study_one_edit(data: Dataset, effort: Effort, seed: int, log: Log) -> Study:
    """Replay every policy on every one-edit bug that a single edit repairs."""
    study = Study(cases=[case for case in data.one_edit if "fixed" in case.replay.outcomes])
    number_of = {id(case): number for number, case in enumerate(study.cases)}
    for name, count in untrained_policies().items():
        study.executions[name] = [count(case.replay) for case in study.cases]
    for trained in train_folds(data, effort, seed, log):
        study.trained.append(trained)
        for name, scorer in trained.scorers():
            for case in trained.fold.test:
                if id(case) in number_of:
                    scores = scorer.score(case.replay)
                    study.scores.setdefault(name, {})[number_of[id(case)]] = scores
    for name, by_case in study.scores.items():
        study.executions[name] = [
            by_score(by_case[number], case.replay) for number, case in enumerate(study.cases)
        ]
    study.executions[f"{OURS}, node decay"] = [
        by_decayed_rank(study.scores[OURS][number], case.replay)
        for number, case in enumerate(study.cases)
    ]
    return study
