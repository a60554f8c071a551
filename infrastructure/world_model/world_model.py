"""`WorldModel`: fit, predict, rank, save, load."""

from __future__ import annotations

import asyncio
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypedDict, cast

import torch

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.events import PrecisionState
from infrastructure.events.event import BaseEvent, Evaluated, Notice, StepStats
from infrastructure.events.precision_state import PrecisionWish
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.precision import resolve_device
from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.schema import Values
from infrastructure.world_model.distributions.confidence import confidence
from infrastructure.world_model.fitting import (
    FittedModel,
    PlanBounds,
    TrainingData,
    fit_candidates,
    plan_training,
    prepare_training_data,
    select_family,
    training_job,
)
from infrastructure.world_model.fitting.scoring import held_out_base_rate, measure
from infrastructure.world_model.model_files import BuildNetwork, load_model, save_model
from infrastructure.world_model.networks import (
    EnsembleNetwork,
    NetworkShape,
    build_seeded,
)
from infrastructure.world_model.planning import (
    Actions,
    Dynamics,
    Plan,
    Planner,
    PlanSettings,
    RewardFunction,
    Rollout,
    roll_out,
    rollout_metrics,
)
from infrastructure.world_model.planning.rollouts import MAX_PARTICLES, MAX_SEED, check_count
from infrastructure.world_model.prediction import (
    Prediction,
    improvement_target,
    to_predictions,
    untrained_prediction,
)
from infrastructure.world_model.scores import score_actions

TEXT_SPEC = TransitionSpec(
    observation={"state": Text()},
    action={"action": Text()},
    targets={"success": Discrete(values=("false", "true")), "improvement": Box()},
    success=("success", "true"),
    improvement="improvement",
)
"""Default spec of `WorldModel`: from the texts of state and action to success and improvement."""

_OOD_WARNING = "not to be trusted, and so close to the base rate"

_ROWS_WITH_EPOCHS = 32
_FEW_ROWS = 1000  # predicted as fast by one thread; several wait for one another


class EpochRecord(TypedDict):
    """One epoch of `WorldModel.training_history`.

    ``loss`` is the mean training loss, NaN if no step had a finite one; ``timestamp`` is Unix
    time in seconds; ``fp16_overflow_batches`` counts the batches of this epoch whose step was
    skipped because of a non-finite gradient.
    """

    epoch: int
    loss: float
    timestamp: float
    fp16_overflow_batches: int


class _HistoryRecorder:
    """Collects an `EpochRecord` per epoch from a training's events, and passes on warnings."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.epochs: list[EpochRecord] = []
        self._clock = clock
        self._stats: StepStats | None = None

    def __call__(self, event: BaseEvent) -> None:
        if isinstance(event, StepStats):
            self._stats = event if self._stats is None else self._stats.merged_with(event)
        elif isinstance(event, Evaluated):
            stats, self._stats = self._stats, None
            self.epochs.append(
                EpochRecord(
                    epoch=event.epoch,
                    loss=math.nan if stats is None or stats.loss is None else stats.loss,
                    timestamp=self._clock(),
                    fp16_overflow_batches=0 if stats is None else stats.overflow,
                )
            )
        elif isinstance(event, Notice) and event.level == "warning":
            fields = ", ".join(f"{name}: {value}" for name, value in event.fields.items())
            warnings.warn(f"{event.event} ({fields})", stacklevel=2)


class WorldModel:
    """Predicts the outcome of an action, with calibrated uncertainty.

    Args:
        members: Number of networks in the ensemble.
        seed: Seed of weights and shuffles.
        clock: Function that returns Unix time in seconds.

    Attributes:
        spec: Inputs and targets, as given or as loaded.
        metrics: Held-out metrics of the current model; empty before any fit.
        training_history: One record per epoch, over all fits.
        training_stats: Statistics of the last fit's trainer, with the precision that was
            requested, the one that ran, and the reason; see `FP16Trainer.get_stats`. Empty before
            any fit.
        beaten_prior: Digest of the prior that this model beat when it was published; empty if it
            was compared with none.
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
        check_count("members", members)
        check_count("hidden", hidden)
        check_count("seed", seed, least=0, most=MAX_SEED)
        self.spec = spec
        self.metrics: dict[str, float] = {}
        self.training_history: list[EpochRecord] = []
        self.training_stats: Mapping[str, float | int | bool | str] = {}
        self.beaten_prior = ""
        self._members, self._hidden, self._seed, self._clock = members, hidden, seed, clock
        self._model: FittedModel | None = None

    @classmethod
    def from_fitted(cls, model: FittedModel, metrics: Mapping[str, float]) -> WorldModel:
        """Wrap a model that was fitted elsewhere."""
        world_model = cls(model.spec)
        world_model._model, world_model.metrics = model, dict(metrics)
        return world_model

    @property
    def fitted_model(self) -> FittedModel | None:
        """Current model; None before any fit."""
        return self._model

    @property
    def fp16_enabled(self) -> bool:
        """Whether the last fit ran in FP16 at its end."""
        return bool(self.training_stats.get("fp16_enabled"))

    def fit(
        self,
        transitions: Iterable[Transition] | TrainingData,
        *,
        epochs: int | None = None,
        batch_size: int | None = None,
        config: FP16TrainingConfig | None = None,
        device: str = "auto",
        precision: PrecisionState | PrecisionWish | None = None,
    ) -> None:
        """Train from scratch, calibrate, and select linear model, ensemble or blend.

        Training runs through `FP16Trainer`. Where the device lacks the half type, on a CPU unless
        ``config.cpu_half``, it runs in FP32; `training_stats` has the reason. Reads the device once
        per epoch. Emits a `UserWarning` for each reason why data was excluded, and for
        each finding of `check_data`.

        Args:
            transitions: Recorded experience, which is split by group into train, calibration and
                test; or data that is split and encoded already.
            epochs: Passes over the training groups, all of them made; None to train by the plan
                of `plan_training`, until the loss on the calibration groups no longer falls.
            batch_size: Maximum number of rows per optimizer step; None for the plan's.
            config: Options of the trainer; None for the defaults.
            device: Device to train on: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``. The fitted model
                stays on the CPU.
            precision: ``fp16``, ``bf16``, ``fp32``, ``auto`` to measure and choose, or a decision
                such as that of `genesis_fp16.settings.library_precision`; None for the
                configuration's. ``config.enabled=False`` outranks it.

        Raises:
            InsufficientDataError: Too few transitions or groups; says which were excluded and why.
            TypeError: Something in *transitions* is not a `Transition`.
            ValueError: *device* does not exist, *precision* is unknown, *epochs* or *batch_size*
                is below 1, *config* accumulates, *transitions* is data of another spec, or the
                spec has ``rollout_steps`` and a field of the observation that is not predicted.
        """
        config = config or FP16TrainingConfig()
        if config.accumulate != 1:
            raise ValueError(
                f"accumulate must be 1, got {config.accumulate}: raise batch_size instead"
            )
        for name, count in (("epochs", epochs), ("batch_size", batch_size)):
            if count is not None:
                check_count(name, count)
        wish, chosen_device = _wish(precision, config), resolve_device(device)
        if isinstance(transitions, TrainingData):
            data = transitions
            if data.spec != self.spec:
                raise ValueError(
                    "this training data is of another spec than the world model's: encode it by "
                    "the model's spec"
                )
        else:
            data = prepare_training_data(self.spec, transitions)
            for problem in (*data.describe_exclusions(), *map(str, data.findings)):
                warnings.warn(problem, stacklevel=2)
        shape = NetworkShape.of(data.encoder, data.codec)
        build = partial(EnsembleNetwork, members=self._members, hidden=self._hidden)
        network = build_seeded(build, shape, self._seed)
        bounds = PlanBounds() if epochs is None else _passes(epochs)
        if batch_size is not None:
            bounds = replace(bounds, batch_size=batch_size)
        rows = data.training_rows
        plan = plan_training(rows, bounds, seed=self._seed, device=str(chosen_device))
        recorder = _HistoryRecorder(self._clock)
        with tempfile.TemporaryDirectory(prefix="world-model-") as folder:
            result = train(
                training_job(data, network, plan),
                device=chosen_device,
                precision=wish,
                config=config,
                options=LoopOptions(seed=self._seed, checkpoint_interval_seconds=float("inf")),
                folder=Path(folder),
                emit=recorder,
                commands=lambda: (),
                best_epoch=Path(folder) / "best.pt",
            )
        candidates = fit_candidates(data, network.cpu())
        self._model = candidates[select_family(candidates, data)]
        predicted = self._model.predict(data.test.features)
        base = held_out_base_rate(data)
        self.metrics = measure(predicted, data.test.outcomes, data.codec, base)
        self.metrics |= rollout_metrics(self._model, data.test.transitions)
        self.training_history += recorder.epochs
        self.training_stats = result.stats

    async def train(
        self,
        transitions: Iterable[Transition] | ReplayBuffer,
        num_epochs: int | None = None,
        batch_size: int | None = None,
        config: FP16TrainingConfig | None = None,
        *,
        device: str = "auto",
        precision: PrecisionState | PrecisionWish | None = None,
    ) -> None:
        """Call `fit` in a thread, so that the event loop keeps running; see there.

        With *num_epochs* and no *batch_size*, a step has at most 32 rows.

        Raises:
            InsufficientDataError, TypeError, ValueError: See `fit`.
        """
        if num_epochs is not None and batch_size is None:
            batch_size = _ROWS_WITH_EPOCHS
        recorded = transitions.read() if isinstance(transitions, ReplayBuffer) else transitions
        await asyncio.to_thread(
            self.fit,
            recorded,
            epochs=num_epochs,
            batch_size=batch_size,
            config=config,
            device=device,
            precision=precision,
        )

    def predict_batch(
        self, observations: Sequence[Values], actions: Sequence[Values]
    ) -> list[Prediction]:
        """Predict row by row; before any fit, with confidence 0.

        A value may be missing: absent, None or NaN. ``warnings`` name each field whose value the
        training data does not explain: missing where it never was, an unseen label, text without a
        known word. Such a field loses its own effect only: predictions are averaged over the values
        of training rows that resemble the row (`Examples`). If a number is far outside the training
        data, the prediction is shrunk to the base rate. ``reasoning`` begins with the warnings.

        Raises:
            ValueError: A field is of another type than the spec declares; the message names it. Or
                there are not as many actions as observations.
        """
        if len(observations) != len(actions):
            raise ValueError(
                f"give one action for each observation, got {len(actions)} for {len(observations)}"
            )
        if self._model is None:
            return [untrained_prediction(self.spec) for _ in observations]
        if not observations:
            return []
        with _one_thread() if len(observations) <= _FEW_ROWS else nullcontext():
            features = self._model.encoder.encode(observations, actions)
            predicted = self._model.predict(features)
            confidence_N = confidence(predicted, self._model.codec)
        reasoning = f"{self._model.family} model, calibrated on held-out groups"
        if warning := self._model.policy_shift_warning:
            reasoning += f"; not to be trusted under another policy: {warning}"
        predictions = to_predictions(self.spec, predicted, observations, confidence_N, reasoning)
        if not features.flags:
            return predictions
        ood_rows = features.out_of_distribution.tolist()
        return [
            replace(
                prediction,
                warnings=tuple(remarks),
                reasoning="; ".join([*([_OOD_WARNING] if ood else []), *remarks, reasoning]),
            )
            for prediction, remarks, ood in zip(
                predictions, features.remarks(), ood_rows, strict=True
            )
        ]

    async def predict(self, state: Values | str, action: Values | str) -> Prediction:
        """Predict one step; a string is the value of the only observation or action field.

        Raises:
            ValueError: A field is of another type than the spec declares; the message names it.
        """
        observation = _as_values("observation", self.spec.observation, state)
        proposed = _as_values("action", self.spec.action, action)
        return self.predict_batch([observation], [proposed])[0]

    def rank(self, observation: Values, actions: Sequence[Values]) -> list[int]:
        """Rank candidate *actions*; return their positions, best first.

        The order is by success probability, then expected improvement, then position. Before any
        fit it is the given order.

        Raises:
            ValueError: A field is of another type than the spec declares; the message names it.
        """
        if self._model is None or not actions:
            return list(range(len(actions)))
        with _one_thread():
            return score_actions(self._model, observation, actions).order

    def success_chances(self, observation: Values, actions: Sequence[Values]) -> list[float]:
        """Return the calibrated probability of the spec's success label, by candidate action.

        Before any fit every probability is 0.5. Torch uses one thread meanwhile: for so few rows
        several only wait for one another, and on busy cores for a long time.

        Raises:
            ValueError: The spec names no success label, or a field is of another type than the
                spec declares.
        """
        if self.spec.success is None:
            raise ValueError("this spec names no success label: declare TransitionSpec.success")
        if self._model is None or not actions:
            return [0.5] * len(actions)
        with _one_thread():
            return score_actions(self._model, observation, actions).chances or []

    @torch.inference_mode()
    def rollout(  # noqa: PLR0913 - each is a property of the rollout
        self,
        observation: Values | Sequence[Values],
        actions: Actions,
        horizon: int | None = None,
        *,
        particles: int = 4,
        seed: int = 0,
        reward: RewardFunction | None = None,
        hold: Sequence[str] = (),
    ) -> Rollout:
        """Imagine trajectories from recorded starts.

        Each particle stays with one member of the ensemble (TS∞ of PETS, arXiv:1805.12114), so
        that the members' disagreement adds up from step to step.

        Args:
            observation: Start, or several. A value may be missing, and a label undeclared; see
                `Rollout.observation`.
            actions: Actions of each step for all starts; a sequence of such sequences, one for
                each start; tensors of the action's fields, ``[H, ...]`` for all starts or
                ``[starts, H, ...]``; or a function that chooses them, see `Policy`. In place of an
                unseen label, each particle acts as a training row which resembles the step.
            horizon: Number of steps; by default all *actions*.
            particles: Particles of each member, whose next states are drawn from the member's
                distribution; 0 for one that follows the member's means and likeliest labels, also
                where a gap leaves them open. Each has its own value of what is missing at the
                start, unless the model has learned what a gap means.
            seed: Seed of what is drawn.
            reward: Function that computes the rewards; None for the learned ones: those of the
                spec's improvement target, or of ``reward``.
            hold: Fields of the observation that are not targets and keep their values.

        Raises:
            ValueError: The model was never fitted; the horizon is below 1 or beyond the actions; a
                value is infinite or of another type or shape, or an action's is missing; or a field
                of the observation is a `Text`, or neither among the targets nor in *hold*.
        """
        model = self._fitted("rolling out")
        check_count("particles", particles, least=0, most=MAX_PARTICLES)
        check_count("seed", seed, least=0, most=MAX_SEED)
        if not isinstance(observation, Sequence):
            observation = [observation]
        noise = torch.Generator().manual_seed(seed) if particles else None
        with _one_thread():
            return roll_out(
                Dynamics(
                    model,
                    reward=None if reward else improvement_target(self.spec),
                    hold=hold,
                ),
                observation,
                actions,
                horizon,
                particles=max(1, particles),
                noise=noise,
                gaps=torch.Generator().manual_seed(seed),
                reward=reward,
            )

    def plan(
        self,
        observation: Values,
        horizon: int,
        settings: PlanSettings | None = None,
        *,
        deadline: float | None = None,
        seed: int = 0,
    ) -> Plan:
        """Find the actions with the highest return that this model predicts.

        Args:
            observation: Current observation, as recorded.
            horizon: Steps of the plan.
            settings: Options of the search: reward, bounds or candidates, penalty, effort.
            deadline: Seconds after which the best plan so far is returned; None for no limit.
            seed: Seed of the search's noise.

        Raises:
            ValueError: See `planner` and `Planner.plan`.
        """
        return self.planner(horizon, settings, seed=seed).plan(observation, deadline)

    def planner(
        self, horizon: int, settings: PlanSettings | None = None, *, seed: int = 0
    ) -> Planner:
        """Return a planner that starts each search from its previous plan; see `plan`.

        Raises:
            ValueError: The model was never fitted. The horizon is below 1. A field of the
                observation is a `Text`, or not among the targets. There is no reward. The actions
                have neither bounds nor candidates.
        """
        model, reward = self._fitted("planning"), improvement_target(self.spec)
        return Planner(
            model,
            horizon,
            PlanSettings() if settings is None else settings,
            reward=reward,
            seed=seed,
        )

    def _fitted(self, purpose: str) -> FittedModel:
        if self._model is None:
            raise ValueError(f"this world model was never fitted: fit it before {purpose}")
        return self._model

    def save(self, folder: Path, *, half: bool = False) -> None:
        """Replace the model in *folder* atomically.

        Args:
            folder: Folder of the model, created if missing.
            half: Whether to store the weights in FP16, which halves the file; `load` makes them
                float32 again.

        Raises:
            ValueError: The model was never fitted, or *half* is set and a weight is beyond the
                range of FP16.
            OSError: Writing failed; the previous model stays in use.
        """
        if self._model is None:
            raise ValueError("this world model was never fitted: fit it before saving")
        extra = {
            "metrics": self.metrics,
            "training_history": self.training_history,
            "beaten_prior": self.beaten_prior,
        }
        save_model(folder, self._model, extra, half=half)

    @classmethod
    def load(cls, folder: Path, build_network: BuildNetwork = EnsembleNetwork) -> WorldModel:
        """Load the model that `save` wrote.

        Args:
            folder: Folder given to `save`.
            build_network: Function that builds the network if it is not an `EnsembleNetwork`.

        Raises:
            FileNotFoundError: There is no model in *folder*.
            ModelFileError: A file is damaged; the message names it and the remedy.
        """
        model, extra = load_model(folder, build_network)
        world_model = cls.from_fitted(model, cast(Mapping[str, float], extra.get("metrics", {})))
        history = cast("list[EpochRecord]", extra.get("training_history", []))
        world_model.training_history = list(history)
        world_model.beaten_prior = str(extra.get("beaten_prior", ""))
        return world_model


@contextmanager
def _one_thread() -> Iterator[None]:
    """Let torch compute with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _passes(count: int) -> PlanBounds:
    """Bounds of a training of *count* passes, with an evaluation after each pass."""
    return PlanBounds(steps=None, passes=count, epochs=count, patience=None)


def _wish(
    precision: PrecisionState | PrecisionWish | None, config: FP16TrainingConfig
) -> PrecisionState:
    """The precision to ask for; either argument can demand FP32."""
    if precision is None or not config.enabled:
        return config.wish
    if isinstance(precision, PrecisionState):
        return precision
    return replace(config, precision=cast("Precision", precision)).wish  # validates the name


def _as_values(part: str, fields: Mapping[str, object], value: Values | str) -> Values:
    if not isinstance(value, str):
        return value
    if len(fields) != 1:
        raise ValueError(
            f"a string can only be the value of a single {part} field, but the spec has "
            f"{sorted(fields)}: pass a mapping"
        )
    return {next(iter(fields)): value}
