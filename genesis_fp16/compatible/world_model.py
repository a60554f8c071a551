"""Genesis' world model: its arguments and its replay buffer's records, on `WorldModel`."""

from __future__ import annotations

import asyncio
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Protocol, cast

from torch.nn import Module

from genesis_fp16.compatible.deprecation import warn_deprecated
from genesis_fp16.settings import load_settings, variable_name
from infrastructure.agent_contract.agent import InsufficientDataError
from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldValue,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionWish
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.precision import resolve, resolve_device
from infrastructure.training.tensor_files import write_tensors
from infrastructure.trajectories import Part, ReplayBuffer
from infrastructure.trajectories.schema import Values
from infrastructure.world_model import EnsembleNetwork, NetworkShape, Prediction
from infrastructure.world_model import WorldModel as CurrentWorldModel
from infrastructure.world_model.fitting import TrainingData, prepare_training_data
from infrastructure.world_model.fitting.training_data import encode_split, fit_encoders
from infrastructure.world_model.networks import build_seeded

__all__ = ["OutcomeTag", "WorldModel", "WorldState", "get_world_model", "predict_outcome"]

ENOUGH_RECORDS = 100
_METRICS = ("overall_score", "correctness", "efficiency")
SPEC = TransitionSpec(
    observation={
        **{metric: Box() for metric in _METRICS},
        "agent": Text(buckets=256),
        "recent_actions": Text(),
        "context": Text(),
    },
    action={"action": Text()},
    targets={"success": Discrete(values=("false", "true")), "improvement": Box()},
    success=("success", "true"),
    improvement="improvement",
)
"""Fields of Genesis' records; its outcome is a target, and never an input."""


class OutcomeTag(Enum):
    """Outcome of a trajectory, in the words of Genesis."""

    SUCCESS = "success"
    FAILURE = "failure"
    PARTIAL = "partial"
    UNKNOWN = "unknown"


@dataclass
class WorldState:
    """State of an agent, in the words of Genesis; *code_snapshot* is a hash, and has no effect."""

    agent_name: str
    code_snapshot: str
    recent_actions: list[str]
    metrics: dict[str, float]
    context: dict[str, Any] = field(default_factory=dict)

    def to_observation(self) -> dict[str, FieldValue | None]:
        """Return the fields of `SPEC`."""
        return {
            **{metric: self.metrics.get(metric) for metric in _METRICS},
            "agent": self.agent_name,
            "recent_actions": _as_text(self.recent_actions),
            "context": _as_text(self.context),
        }


class Buffer(Protocol):
    """Replay buffer of Genesis."""

    def sample(self, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return at most *limit* records."""


class WorldModel(CurrentWorldModel):
    """`infrastructure.world_model.WorldModel` with the arguments of Genesis' own.

    Precision is read as `library_precision` reads it, but FP32 unless ``ENABLE_FP16_TRAINING`` is
    set to true, as in Genesis.

    Args:
        state_dim, action_dim: No effect: the records decide.
        hidden_dim: Size of the hidden layers; None for the default.
        model_path: File that `_save_model` writes. Nothing else reads or writes it.

    Attributes:
        replay_buffer: Buffer that `train` samples; set it.
        unpublishable: Reason why this model must never be published; empty if it may.
    """

    def __init__(
        self,
        state_dim: int = 128,
        action_dim: int = 128,
        hidden_dim: int | None = None,
        model_path: Path | str = Path("models/world_model.pt"),
    ) -> None:
        warn_deprecated("WorldModel()", "infrastructure.world_model.WorldModel(spec)")
        super().__init__(SPEC, hidden=hidden_dim or 64)
        self.state_dim, self.action_dim = state_dim, action_dim
        self.hidden_dim = 256 if hidden_dim is None else hidden_dim
        self.model_path = Path(model_path)
        self.replay_buffer: Buffer | None = None
        self.unpublishable = ""
        settings = load_settings(
            only=("ENABLE_FP16_TRAINING", variable_name("precision"), variable_name("cpu_half"))
        )
        self._cpu_half = settings.cpu_half
        is_set = settings.source_of("enable_fp16_training") != "default"
        is_half = settings.enable_fp16_training and is_set
        half = settings.precision
        self._wish = (
            PrecisionState(requested=half, effective=half, reason="default")
            if is_half
            else PrecisionState(requested=half, effective="fp32", reason="flag")
        )

    @property
    def fp16_enabled(self) -> bool:
        """Whether the last training ran in FP16; before any, whether one would."""
        if self.training_stats or self._wish.effective == "auto":
            return super().fp16_enabled
        state = resolve(self._wish, resolve_device("auto"), cpu_half=self._cpu_half)
        return state.effective == "fp16"

    @property
    def _fp16_stats(self) -> dict[str, float | int | bool | str] | None:
        if not self.training_stats or not self.fp16_enabled:
            return None
        return {**self.training_stats, "fp16_enabled_runtime": True}

    @property
    def model(self) -> Module:
        """Ensemble of networks; before any training one with random weights."""
        if self.fitted_model is not None:
            return self.fitted_model.ensemble
        shape = NetworkShape.of(*fit_encoders(SPEC, _one_of_each(0.0)))
        return build_seeded(EnsembleNetwork, shape, 0)

    async def train(
        self,
        transitions: Iterable[Transition] | ReplayBuffer | None = None,
        num_epochs: int | None = 10,
        batch_size: int | None = 32,
        config: FP16TrainingConfig | None = None,
        *,
        device: str = "auto",
        precision: PrecisionState | PrecisionWish | None = None,
    ) -> None:
        """Train on *transitions*, or on at most 1,000 records of `replay_buffer`.

        Too few records for a held-out test train all the same, with a warning: the model is marked
        as `unpublishable`. Without any record nothing happens but the warning.

        Raises:
            ValueError: A record of the buffer cannot be used; the message names it.
        """
        if transitions is None:
            warn_deprecated("train() on a replay_buffer", "train(transitions)")
            buffer = self.replay_buffer
            transitions = _transitions(buffer.sample(limit=1000) if buffer else ())
            if not transitions:
                warnings.warn("the replay buffer is empty: nothing was trained", stacklevel=2)
                return
        elif isinstance(transitions, ReplayBuffer):
            transitions = transitions.read()
        data, self.unpublishable = _training_data(self.spec, list(transitions))
        if self.unpublishable:
            warnings.warn(self.unpublishable, stacklevel=2)
        await asyncio.to_thread(
            self.fit,
            data,
            epochs=num_epochs,
            batch_size=batch_size,
            config=config or FP16TrainingConfig(cpu_half=self._cpu_half),
            device=device,
            precision=precision or self._wish,
        )

    async def predict(
        self,
        state: Values | str | WorldState | None = None,
        action: Values | str | None = None,
        *,
        current_state: WorldState | None = None,
        proposed_action: str | None = None,
    ) -> Prediction:
        """As `infrastructure.world_model.WorldModel.predict`, also by Genesis' arguments."""
        if current_state is not None or proposed_action is not None:
            warn_deprecated("predict(current_state=, proposed_action=)", "predict(state, action)")
        state = current_state if state is None else state
        action = proposed_action if action is None else action
        if state is None or action is None:
            raise TypeError("predict() needs a state and an action")
        if isinstance(state, WorldState):
            state = state.to_observation()
        return await super().predict(state, action)

    def save(self, folder: Path, *, half: bool = False) -> None:
        """As `infrastructure.world_model.WorldModel.save`, for a model that may be published.

        Raises:
            ValueError: The model is `unpublishable`.
        """
        if self.unpublishable:
            raise ValueError(f"this model cannot be saved: {self.unpublishable}")
        super().save(folder, half=half)

    def _save_model(self, path: Path | str | None = None) -> None:
        file = Path(path or self.model_path)
        file.parent.mkdir(parents=True, exist_ok=True)
        saved = {"model_state": self.model.state_dict(), "training_history": self.training_history}
        write_tensors(file, saved)


_world_model: WorldModel | None = None


def get_world_model() -> WorldModel:
    """Return the world model of this process."""
    global _world_model  # noqa: PLW0603 -- Genesis' code expects one for each process
    if _world_model is None:
        _world_model = WorldModel()
    return _world_model


async def predict_outcome(current_state: WorldState, proposed_action: str) -> Prediction:
    """Predict by the world model of this process."""
    return await get_world_model().predict(current_state, proposed_action)


def _as_text(value: object) -> str:
    return "" if not value else json.dumps(value, sort_keys=True, default=str)


def _transitions(records: Iterable[Mapping[str, Any]]) -> list[Transition]:
    found = []
    for number, record in enumerate(records):
        try:
            found.append(_transition(record))
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(
                f"record {number} of the replay buffer cannot be used ({error}); it needs "
                "initial_state, actions or steps, final_outcome and a number as final_reward"
            ) from error
    return found


def _transition(record: Mapping[str, Any]) -> Transition:
    """A record in the form that Genesis' world model expects, or as its buffer stores it."""
    initial = record.get("initial_state") or {}
    actions = record.get("actions") or [
        step.get("tool_name", "") for step in record.get("steps") or ()
    ]
    rest = {key: value for key, value in initial.items() if key != "metrics"}
    state = WorldState(
        agent_name=str(record.get("agent_id", "")),
        code_snapshot="",
        recent_actions=[],
        metrics=cast("dict[str, float]", initial.get("metrics") or {}),
        context=rest,
    )
    reward = float(record.get("final_reward", record.get("reward", 0.0)))
    outcome = getattr(record.get("final_outcome"), "value", record.get("final_outcome"))
    return Transition(
        group=_as_text([initial, actions]),
        observation=state.to_observation(),
        action={"action": _as_text(actions)},
        reward=reward,
        next_observation={
            "success": outcome == OutcomeTag.SUCCESS.value,
            "improvement": reward,
        },
        terminated=True,
    )


def _training_data(spec: TransitionSpec, transitions: list[Transition]) -> tuple[TrainingData, str]:
    """Encoded data, and the reason why its model must not be published, or empty."""
    reason = (
        f"{len(transitions)} records are fewer than {ENOUGH_RECORDS}: this model is never published"
        if len(transitions) < ENOUGH_RECORDS
        else ""
    )
    try:
        data = prepare_training_data(spec, transitions)
    except InsufficientDataError as error:
        reason = reason or f"this model is never published: {error}"
    else:
        for problem in (*data.describe_exclusions(), *map(str, data.findings)):
            warnings.warn(problem, stacklevel=4)
        return data, reason
    return encode_split(spec, _split_of_few(spec, transitions)), reason


def _split_of_few(
    spec: TransitionSpec, transitions: list[Transition]
) -> Mapping[Part, list[Transition]]:
    """Split too few records: three fifths train; with fewer than five, all are in each part.

    Where all have one outcome, one more of each outcome, without inputs, joins the training (rule
    of succession: Laplace 1814), since nothing can be learned from a constant.
    """
    parts: dict[Part, list[Transition]] = {"train": [], "calibration": [], "test": []}
    order: list[Part] = ["train", "train", "train", "calibration", "test"]
    for number, transition in enumerate(transitions):
        parts[order[number % len(order)]].append(transition)
    if len(transitions) < len(order):
        parts = {part: list(transitions) for part in parts}
    if spec is SPEC and len({each.next_observation["success"] for each in parts["train"]}) == 1:
        mean = sum(each.reward for each in transitions) / len(transitions)
        parts["train"] += _one_of_each(mean)
    return parts


def _one_of_each(improvement: float) -> list[Transition]:
    return [
        Transition(
            group=f"one more: {success}",
            observation={},
            action={},
            reward=improvement,
            next_observation={"success": success, "improvement": improvement},
            terminated=True,
        )
        for success in (False, True)
    ]
