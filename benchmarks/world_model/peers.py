"""What a person would take instead: five kinds of models of scikit-learn.

Each kind has a few settings. The calibration groups choose among them; then the chosen one is
fitted on all groups that are not held out. Ours uses the calibration groups, too.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor

from benchmarks.world_model.columns import Columns, Inputs
from benchmarks.world_model.metrics import Numbers, log_loss
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import TransitionSpec

Predict: TypeAlias = Callable[[Sequence[Transition]], Numbers]
"""Probabilities ``[N, L]`` of labels, or numbers ``[N, D]``, of transitions."""

BASE_SHARE = 1e-3
"""Weight of the base rate in a peer's probabilities: some of them state a probability of 0."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of model.

    Attributes:
        prepare: Chooses the form of the inputs.
        classifiers, regressors: Settings to choose among.
        several: Whether a regressor predicts several dimensions at once.
    """

    prepare: Callable[[Inputs], Any]
    classifiers: Sequence[Any]
    regressors: Sequence[Any]
    several: bool = True


def kinds(seed: int) -> dict[str, Kind]:
    """The kinds of models, by name."""
    slowly = {"learning_rate": 0.05, "max_iter": 500, "early_stopping": True, "random_state": seed}
    forest = {"n_estimators": 200, "random_state": seed}
    stopped = {"early_stopping": True, "max_iter": 300, "random_state": seed}
    decayed = {"alpha": 1.0, "max_iter": 300, "random_state": seed}
    return {
        "linear": Kind(
            prepare=lambda inputs: inputs.wide,
            classifiers=[LogisticRegression(C=c, max_iter=500) for c in (0.01, 0.1, 1, 10, 100)],
            regressors=[Ridge(alpha=alpha) for alpha in (0.1, 1, 10, 100)],
        ),
        "HGB": Kind(
            prepare=lambda inputs: inputs.with_gaps,
            classifiers=[
                HistGradientBoostingClassifier(random_state=seed),
                HistGradientBoostingClassifier(**slowly),
            ],
            regressors=[
                HistGradientBoostingRegressor(random_state=seed),
                HistGradientBoostingRegressor(**slowly),
            ],
            several=False,
        ),
        "RF": Kind(
            prepare=lambda inputs: inputs.filled,
            classifiers=[RandomForestClassifier(min_samples_leaf=n, **forest) for n in (1, 5)],
            regressors=[
                RandomForestRegressor(min_samples_leaf=n, max_features=0.5, **forest)
                for n in (1, 5)
            ],
        ),
        "kNN": Kind(
            prepare=lambda inputs: inputs.filled,
            classifiers=[KNeighborsClassifier(n, weights="distance") for n in (5, 15, 50)],
            regressors=[KNeighborsRegressor(n, weights="distance") for n in (5, 15, 50)],
        ),
        "MLP": Kind(
            prepare=lambda inputs: inputs.filled,
            classifiers=[MLPClassifier(**stopped), MLPClassifier(**decayed)],
            regressors=[
                MLPRegressor(hidden_layer_sizes=(128, 128), **stopped),
                MLPRegressor(hidden_layer_sizes=(128, 128), **decayed),
            ],
        ),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Lesson:
    """What the peers learn.

    Attributes:
        train, calibration: Transitions of these groups.
        labels: Labels of the target; empty for numbers.
        outcomes: Outcomes of transitions: positions of labels, ``[N]`` int64, or ``[N, D]``.
    """

    spec: TransitionSpec
    train: Sequence[Transition]
    calibration: Sequence[Transition]
    labels: Sequence[str]
    outcomes: Callable[[Sequence[Transition]], NDArray[Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Peer:
    """A fitted peer.

    Attributes:
        seconds: CPU time of choosing and fitting.
    """

    predict: Predict
    seconds: float


def fit_peers(lesson: Lesson, seed: int) -> dict[str, Peer]:
    """Fit every kind of model."""
    all_rows = [*lesson.train, *lesson.calibration]
    first, last = Columns(lesson.spec, lesson.train), Columns(lesson.spec, all_rows)
    train, held = first.inputs(lesson.train), first.inputs(lesson.calibration)
    every = last.inputs(all_rows)
    peers = {}
    for name, kind in kinds(seed).items():
        begun = time.process_time()
        with _few_warnings():
            settings = kind.classifiers if lesson.labels else kind.regressors
            if not lesson.labels and not kind.several:
                settings = [MultiOutputRegressor(each) for each in settings]

            def loss(setting: Any, kind: Kind = kind) -> float:
                model = _Fitted(setting, kind.prepare(train), lesson, lesson.train)
                predicted = model.predict(kind.prepare(held))
                return _loss(predicted, lesson.outcomes(lesson.calibration), lesson)

            best = min(settings, key=loss)
            fitted = _Fitted(best, kind.prepare(every), lesson, all_rows)
        predict = _predict_transitions(last, kind, fitted)
        peers[name] = Peer(predict=predict, seconds=time.process_time() - begun)
    return peers


def _predict_transitions(columns: Columns, kind: Kind, fitted: _Fitted) -> Predict:
    return lambda rows: fitted.predict(kind.prepare(columns.inputs(rows)))


class _Fitted:
    """One estimator, whose outcomes are standardised if they are numbers."""

    def __init__(
        self,
        estimator: Any,
        inputs: Any,
        lesson: Lesson,
        rows: Sequence[Transition],
    ) -> None:
        self._estimator, self._labels = clone(estimator), len(lesson.labels)
        outcomes = lesson.outcomes(rows)
        if self._labels:
            self._base_L = np.bincount(outcomes, minlength=self._labels) + 1.0 / self._labels
            self._base_L = self._base_L / self._base_L.sum()
            self._estimator.fit(inputs, outcomes)
            return
        self._mean_D, self._scale_D = outcomes.mean(0), outcomes.std(0)
        self._scale_D[self._scale_D == 0] = 1.0
        standard_ND = (outcomes - self._mean_D) / self._scale_D
        self._one = standard_ND.shape[1] == 1 and not isinstance(
            self._estimator, MultiOutputRegressor
        )
        self._estimator.fit(inputs, standard_ND[:, 0] if self._one else standard_ND)

    def predict(self, inputs: Any) -> Numbers:
        if self._labels:
            known = self._estimator.predict_proba(inputs)
            probability_NL = np.zeros((len(known), self._labels))
            probability_NL[:, self._estimator.classes_] = known
            return np.asarray((1 - BASE_SHARE) * probability_NL + BASE_SHARE * self._base_L)
        standard_ND = np.asarray(self._estimator.predict(inputs)).reshape(inputs.shape[0], -1)
        return np.asarray(standard_ND * self._scale_D + self._mean_D)


def _loss(predicted: Numbers, outcomes: NDArray[Any], lesson: Lesson) -> float:
    if lesson.labels:
        return float(log_loss(predicted, outcomes).mean())
    scale_D = outcomes.std(0)
    scale_D[scale_D == 0] = 1.0
    return float((((predicted - outcomes) / scale_D) ** 2).mean())


@contextmanager
def _few_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)
        yield
