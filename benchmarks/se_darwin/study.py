"""One-edit bugs, fold by fold: learn on other modules, rank the candidates of these."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.se_darwin.dataset import Case, Dataset, Effort, Say
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
from benchmarks.se_darwin.ranking import by_decayed_place, by_score, untaught
from infrastructure.events.precision_state import PrecisionName

OURS = "ours fp32"
RIVALS = ("logistic", "boosting")


@dataclass(frozen=True, kw_only=True, slots=True)
class Taught:
    """What one fold has taught.

    Attributes:
        fold: The data.
        ours: The world model by precision.
        rivals: The classifiers by name.
    """

    fold: Fold
    ours: Mapping[PrecisionName, Learned]
    rivals: Mapping[str, RivalScorer]

    def scorers(self) -> Iterator[tuple[str, Scorer]]:
        """Policy to what ranks for it."""
        yield from self.rivals.items()
        for precision, learned in self.ours.items():
            yield f"ours {precision}", WorldModelScorer(model=learned.model)
        for family in ("linear", "ensemble"):
            model = self.ours["fp32"].families[family]
            yield f"{OURS}, {family} alone", WorldModelScorer(model=model)


@dataclass(kw_only=True, slots=True)
class Study:
    """Attributes:
    cases: Those that a single edit repairs.
    taught: By fold.
    scores: Policy to case number to the scores of its candidates.
    executions: Policy to executions until the repair, case by case.
    """

    cases: Sequence[Case]
    taught: list[Taught] = field(default_factory=list)
    scores: dict[str, dict[int, Scores]] = field(default_factory=dict)
    executions: dict[str, list[float]] = field(default_factory=dict)

    @property
    def modules(self) -> list[str]:
        """Of each case."""
        return [case.bug.module for case in self.cases]


def teach(data: Dataset, effort: Effort, seed: int, say: Say) -> Iterator[Taught]:
    """Learn from all folds but one, for each; the fold's number is added to the seed."""
    for number in range(effort.folds):
        fold = make_fold(data.one_edit, data.fold_of, number)
        rows = len(fold.data.train.features)
        ours = learn(fold.data, effort.steps, seed + number)
        chosen = ", ".join(f"{name} {learned.chosen}" for name, learned in ours.items())
        say(f"  fold {number}: {rows} candidates to learn from; chosen: {chosen}")
        yield Taught(fold=fold, ours=ours, rivals=learn_rivals(fold.data, seed + number))


def study_one_edit(data: Dataset, effort: Effort, seed: int, say: Say) -> Study:
    """Replay every policy on every one-edit bug that an edit repairs."""
    study = Study(cases=[case for case in data.one_edit if "fixed" in case.replay.outcomes])
    number_of = {id(case): number for number, case in enumerate(study.cases)}
    for name, count in untaught().items():
        study.executions[name] = [count(case.replay) for case in study.cases]
    for taught in teach(data, effort, seed, say):
        study.taught.append(taught)
        for name, scorer in taught.scorers():
            for case in taught.fold.test:
                if id(case) in number_of:
                    scores = scorer.score(case.replay)
                    study.scores.setdefault(name, {})[number_of[id(case)]] = scores
    for name, by_case in study.scores.items():
        study.executions[name] = [
            by_score(by_case[number], case.replay) for number, case in enumerate(study.cases)
        ]
    study.executions[f"{OURS}, node decay"] = [
        by_decayed_place(study.scores[OURS][number], case.replay)
        for number, case in enumerate(study.cases)
    ]
    return study
