"""Train on a fold's modules: the world model, and classical classifiers as rivals.

All get the same transitions. The world model holds back a part of them to calibrate itself and to
choose its family; the rivals are trained on that part too.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from agents.se_darwin.features import SPEC
from benchmarks.se_darwin.dataset import ExecutedBug
from benchmarks.se_darwin.replay import ReplayTask
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PRECISIONS, PrecisionName
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.trajectories.encoding import FeatureEncoder, Features
from infrastructure.world_model.fitting import (
    Family,
    FittedModel,
    TrainingPlan,
    fit_candidates,
    fit_linear,
    select_family,
    training_job,
)
from infrastructure.world_model.fitting.training_data import TrainingData, encode_split
from infrastructure.world_model.networks import (
    EnsembleNetwork,
    LinearNetwork,
    NetworkShape,
    build_seeded,
)

FIXED = SPEC.targets["outcome"].values.index("fixed")  # type: ignore[union-attr]  # a Discrete
CALIBRATION_SHARE = 0.15
EPOCHS = 6

Scores = NDArray[np.float64]


class Scorer(Protocol):
    """A learned score of candidates; higher scores run earlier."""

    def score(self, task: ReplayTask) -> Scores:
        """Return one number per candidate of *task*."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fold:
    """Attributes:
    number: Number of the fold whose modules are held out.
    data: Training and calibration data of the other modules; test data of the held-out ones.
    calibration: Bugs of the calibration modules.
    test: Bugs of the held-out modules.
    """

    number: int
    data: TrainingData
    calibration: Sequence[ExecutedBug]
    test: Sequence[ExecutedBug]


def make_fold(cases: Sequence[ExecutedBug], fold_of: dict[str, int], number: int) -> Fold:
    """Encode the training data without the modules of fold *number*."""
    split: dict[str, list[ExecutedBug]] = {"train": [], "calibration": [], "test": []}
    learned_from = [module for module, fold in fold_of.items() if fold != number]
    learned_from.sort(key=lambda module: zlib.crc32(f"{number}/{module}".encode()))
    calibrated_on = set(learned_from[: max(1, round(CALIBRATION_SHARE * len(learned_from)))])
    for case in cases:
        module = case.bug.module
        part = "calibration" if module in calibrated_on else "train"
        split["test" if fold_of[module] == number else part].append(case)
    transitions = {
        part: [
            transition for case in chosen for transition in case.replay.transitions(case.bug.module)
        ]
        for part, chosen in split.items()
    }
    return Fold(
        number=number,
        data=encode_split(SPEC, transitions),  # type: ignore[arg-type]  # the three parts
        calibration=split["calibration"],
        test=split["test"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class WorldModelScorer:
    """Scores candidates by the log-odds of a repair under a fitted world model."""

    model: FittedModel

    def score(self, task: ReplayTask) -> Scores:
        """See `Scorer`."""
        features = self.model.encoder.encode([task.observation] * len(task.actions), task.actions)
        predicted: Any = self.model.predict(features)["outcome"]
        scores: Scores = predicted.log_odds(FIXED).numpy()
        return scores


@dataclass(frozen=True, kw_only=True, slots=True)
class Learned:
    """The world model of one fold in one precision.

    Attributes:
        network: The trained ensemble.
        families: Linear, ensemble and blend, each calibrated.
        chosen: The family with the lowest loss on the calibration modules.
    """

    network: EnsembleNetwork
    families: dict[Family, FittedModel]
    chosen: Family

    @property
    def model(self) -> FittedModel:
        """The chosen model, which would be published."""
        return self.families[self.chosen]


def train_ensemble(
    data: TrainingData, precision: PrecisionName, steps: int, seed: int
) -> EnsembleNetwork:
    """Train through `FP16Trainer`, in half precision on a CPU too."""
    shape = NetworkShape.of(data.encoder, data.codec)
    network = build_seeded(EnsembleNetwork, shape, seed)
    if not isinstance(network, EnsembleNetwork):
        raise TypeError("the ensemble is an EnsembleNetwork")
    plan = TrainingPlan(epochs=EPOCHS, steps_per_epoch=max(1, steps // EPOCHS), seed=seed)
    with tempfile.TemporaryDirectory(prefix="se-darwin-bench-") as folder:
        train(
            training_job(data, network, plan),
            device=torch.device("cpu"),
            precision=PrecisionState(requested=precision, effective=precision, reason="agent"),
            config=FP16TrainingConfig(cpu_half=True),
            options=LoopOptions(seed=seed, checkpoint_interval_seconds=float("inf")),
            folder=Path(folder),
            emit=lambda _: None,
            commands=lambda: (),
            best_epoch=Path(folder) / "best.pt",
        )
    return network


def learn(data: TrainingData, steps: int, seed: int) -> dict[PrecisionName, Learned]:
    """Fit the world model in every precision; all share the linear model."""
    linear = fit_linear(data)
    return {
        precision: choose(data, train_ensemble(data, precision, steps, seed), linear)
        for precision in PRECISIONS
    }


def choose(data: TrainingData, network: EnsembleNetwork, linear: LinearNetwork) -> Learned:
    """Blend, calibrate, and choose a family on the calibration modules."""
    families = fit_candidates(data, network, linear)
    return Learned(network=network, families=families, chosen=select_family(families, data))


@dataclass(frozen=True, kw_only=True, slots=True)
class RivalScorer:
    """A scikit-learn classifier of repairs on the same encoded features."""

    encoder: FeatureEncoder
    classifier: Any
    use_tokens: bool

    def score(self, task: ReplayTask) -> Scores:
        """See `Scorer`."""
        features = self.encoder.encode([task.observation] * len(task.actions), task.actions)
        table = _table(features, self.encoder, self.use_tokens)
        scores: Scores = self.classifier.decision_function(table)
        return scores


def learn_rivals(data: TrainingData, seed: int) -> dict[str, RivalScorer]:
    """Fit logistic regression on all features, and gradient boosting on all but the tokens.

    The penalty of the first and the tree size of the second are chosen on the calibration modules,
    like the world model's penalty.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import log_loss

    parts = (data.train, data.calibration)
    fixed = [(part.outcomes["outcome"] == FIXED).numpy() for part in parts]
    choices = {
        "logistic": [partial(LogisticRegression, C=c, max_iter=300) for c in (0.03, 0.1, 0.3)],
        "boosting": [
            partial(
                HistGradientBoostingClassifier,
                max_iter=150,
                learning_rate=0.06,
                max_leaf_nodes=leaves,
                min_samples_leaf=40,
                l2_regularization=5.0,
                random_state=seed,
            )
            for leaves in (7, 15, 31)
        ],
    }
    rivals = {}
    for name, builds in choices.items():
        use_tokens = name == "logistic"
        tables = [_table(part.features, data.encoder, use_tokens) for part in parts]
        loss = {
            build: log_loss(fixed[1], build().fit(tables[0], fixed[0]).predict_proba(tables[1]))
            for build in builds
        }
        classifier = min(loss, key=loss.__getitem__)()
        classifier.fit(_stack(tables), np.concatenate(fixed))
        rivals[name] = RivalScorer(
            encoder=data.encoder, classifier=classifier, use_tokens=use_tokens
        )
    return rivals


def _table(features: Features, encoder: FeatureEncoder, use_tokens: bool) -> Any:
    """Return dense columns, with *use_tokens* also a sparse column per token bucket."""
    dense = features.dense.numpy().astype(np.float64)
    if not use_tokens:
        return dense
    from scipy import sparse

    columns = [sparse.csr_matrix(dense)]
    for name, rows in encoder.text_rows.items():
        tokens = features.texts[name]
        starts = np.append(tokens.offsets.numpy(), len(tokens.buckets))
        ones = np.ones(len(tokens.buckets))
        shape = (len(features), rows)
        columns.append(sparse.csr_matrix((ones, tokens.buckets.numpy(), starts), shape=shape))
    return sparse.hstack(columns).tocsr()


def _stack(tables: Sequence[Any]) -> Any:
    if isinstance(tables[0], np.ndarray):
        return np.vstack(tables)
    from scipy import sparse

    return sparse.vstack(tables).tocsr()
