"""`WorldModel`: fit, predict, rank, save, load."""

from __future__ import annotations

import asyncio
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop.train import LoopOptions, train
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.artefact import BuildNetwork, load_model, save_model
from infrastructure.world_model.best_epoch import BestEpoch
from infrastructure.world_model.fitted_model import FittedModel, calibration_loss, fit_candidates
from infrastructure.world_model.network import EnsembleNetwork, NetworkShape, build_seeded
from infrastructure.world_model.prediction import (
    Prediction,
    by_promise,
    predictions_of,
    untrained_prediction,
)
from infrastructure.world_model.scoring import measure
from infrastructure.world_model.training_data import prepare
from infrastructure.world_model.training_history import EpochRecord, HistoryRecorder
from infrastructure.world_model.training_job import TrainingPlan, training_job

TEXT_SPEC = TransitionSpec(
    observation={"state": Text()},
    action={"action": Text()},
    targets={"success": Discrete(values=("false", "true")), "improvement": Box()},
    success=("success", "true"),
    improvement="improvement",
)
"""What ``WorldModel()`` takes: texts of state and action; success and improvement come out."""


_OUTSIDE = (
    "not to be trusted: a number is missing or far outside what was seen, or a label never was, so "
    "this is hardly more than the base rate"
)


class WorldModel:
    """Predicts what an action will lead to, and how sure that is.

    Args:
        spec: Declares inputs and targets.
        members: Networks in the ensemble.
        hidden: Their hidden width.
        seed: Of weights and shuffles.
        clock: Unix time in seconds.

    Attributes:
        spec: As given, or as loaded.
        metrics: Held-out metrics of the model in use; empty before any fit.
        training_history: See `EpochRecord`.
        fp16_enabled: Whether the last fit ran in FP16.
    """

    def __init__(
        self,
        spec: TransitionSpec = TEXT_SPEC,
        *,
        members: int = 5,
        hidden: int = 64,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.spec = spec
        self.metrics: dict[str, float] = {}
        self.training_history: list[EpochRecord] = []
        self.fp16_enabled = False
        self._members, self._hidden, self._seed, self._clock = members, hidden, seed, clock
        self._model: FittedModel | None = None

    @classmethod
    def of(cls, model: FittedModel, metrics: Mapping[str, float]) -> WorldModel:
        """Put a model that was fitted elsewhere to use."""
        world_model = cls(model.spec)
        world_model._model, world_model.metrics = model, dict(metrics)
        return world_model

    @property
    def fitted(self) -> FittedModel | None:
        """The model in use, or None before any fit."""
        return self._model

    def fit(
        self,
        transitions: Iterable[Transition],
        *,
        epochs: int = 10,
        batch_size: int = 256,
        config: FP16TrainingConfig | None = None,
        device: str = "cpu",
    ) -> None:
        """Train from scratch, choose linear, ensemble or blend, and calibrate.

        Training runs through `FP16Trainer`. On a CPU it runs in FP32 unless
        ``config.cpu_half``. Reads the device once per epoch.

        Args:
            transitions: Recorded experience; split by group into train, calibration and test.
            epochs: Passes over the training groups.
            batch_size: Rows per optimizer step.
            config: Of the trainer.
            device: Where to train; the fitted model lives on the CPU.

        Raises:
            InsufficientDataError: Too few transitions or groups.
        """
        data = prepare(self.spec, transitions)
        for problem in data.left_out():
            warnings.warn(problem, stacklevel=2)
        shape = NetworkShape.of(data.encoder, data.codec)
        build = partial(EnsembleNetwork, members=self._members, hidden=self._hidden)
        network = build_seeded(build, shape, self._seed)
        plan = TrainingPlan(
            epochs=epochs,
            steps_per_epoch=max(1, len(data.train.features) // batch_size),
            batch_size=batch_size,
            seed=self._seed,
            device=device,
        )
        recorder = HistoryRecorder(self._clock)
        config = config or FP16TrainingConfig()
        with tempfile.TemporaryDirectory(prefix="world-model-") as folder:
            best = BestEpoch(Path(folder) / "best.pt")
            train(
                training_job(data, network, plan, best),
                device=torch.device(device),
                precision=config.wish,
                config=config,
                options=LoopOptions(seed=self._seed, checkpoint_interval_seconds=float("inf")),
                folder=Path(folder),
                emit=recorder,
                commands=lambda: (),
            )
            best.restore(network)
        candidates = fit_candidates(data, network)
        self._model = min(candidates.values(), key=lambda model: calibration_loss(model, data))
        outlook = self._model.outlook(data.test.features)
        self.metrics = measure(outlook, data.test.outcomes, data.codec)
        self.training_history += recorder.epochs
        self.fp16_enabled = recorder.precision == "fp16"

    async def train(
        self,
        transitions: Iterable[Transition] | ReplayBuffer,
        num_epochs: int = 10,
        batch_size: int = 32,
        config: FP16TrainingConfig | None = None,
    ) -> None:
        """`fit` in a thread, so that the event loop goes on.

        Raises:
            InsufficientDataError: Too few transitions or groups.
        """
        recorded = transitions.read() if isinstance(transitions, ReplayBuffer) else transitions
        await asyncio.to_thread(
            self.fit, recorded, epochs=num_epochs, batch_size=batch_size, config=config
        )

    def predict_batch(
        self, observations: Sequence[Values], actions: Sequence[Values]
    ) -> list[Prediction]:
        """Predict row by row; before any fit, with confidence 0.

        Where a number is missing, not finite, or far outside what was seen in training, or a
        label was not seen there, the answer is shrunk to the base rate, its confidence is at
        most 0.1, and it says so.

        Raises:
            ValueError: A field is missing or of another type than the spec declares.
        """
        if self._model is None:
            return [untrained_prediction(self.spec) for _ in observations]
        if not observations:
            return []
        features = self._model.encoder.encode(observations, actions)
        outlook = self._model.outlook(features)
        reasoning = f"{self._model.family} model, calibrated on held-out groups"
        if self._model.caution:
            reasoning += f"; not to be trusted under another policy: {self._model.caution}"
        predictions = predictions_of(self.spec, outlook, observations, reasoning)
        return [
            replace(prediction, reasoning=f"{_OUTSIDE}; {reasoning}") if outside else prediction
            for prediction, outside in zip(predictions, features.outside.tolist(), strict=True)
        ]

    async def predict(self, state: Values | str, action: Values | str) -> Prediction:
        """Predict one step; a string stands for the only field of its side.

        Raises:
            ValueError: A field is missing or of another type than the spec declares.
        """
        observation = _as_values("observation", self.spec.observation, state)
        proposed = _as_values("action", self.spec.action, action)
        return self.predict_batch([observation], [proposed])[0]

    def rank(self, observation: Values, actions: Sequence[Values]) -> list[int]:
        """Order *actions* by promise, best first: positions in *actions*.

        By success probability, ties by expected improvement; in their given order before any
        fit.

        Raises:
            ValueError: A field is missing or of another type than the spec declares.
        """
        if self._model is None or not actions:
            return list(range(len(actions)))
        features = self._model.encoder.encode([observation] * len(actions), actions)
        return by_promise(self.spec, self._model.outlook(features))

    def save(self, folder: Path) -> None:
        """Put the model in *folder* atomically.

        Raises:
            ValueError: There is nothing to save yet.
            OSError: The disk does not take it.
        """
        if self._model is None:
            raise ValueError("this world model was never fitted: fit it before saving")
        extra = {"metrics": self.metrics, "training_history": self.training_history}
        save_model(folder, self._model, extra)

    @classmethod
    def load(cls, folder: Path, build_network: BuildNetwork = EnsembleNetwork) -> WorldModel:
        """Read what `save` wrote.

        Args:
            folder: As given to `save`.
            build_network: For a model whose network is not an `EnsembleNetwork`.

        Raises:
            FileNotFoundError: There is no model in *folder*.
            ModelFileError: A file is damaged; the message names it and the remedy.
        """
        model, extra = load_model(folder, build_network)
        world_model = cls.of(model, cast(Mapping[str, float], extra.get("metrics", {})))
        history = cast("list[EpochRecord]", extra.get("training_history", []))
        world_model.training_history = list(history)
        return world_model


def _as_values(part: str, fields: Mapping[str, object], value: Values | str) -> Values:
    if not isinstance(value, str):
        return value
    if len(fields) != 1:
        raise ValueError(
            f"a string stands for a single {part} field, but the spec has {sorted(fields)}: "
            f"pass a mapping"
        )
    return {next(iter(fields)): value}
