"""The state of a trainer that checkpoints hold."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import structlog
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.training.adaptive_clip import AdaptiveClip
from infrastructure.training.checkpoints import CheckpointError, read_state, write_state
from infrastructure.training.checkpoints.fit import (
    compare_model,
    compare_optimizer,
    in_one_line,
    own_tensors,
)
from infrastructure.training.checkpoints.original import has_manifest, read_original
from infrastructure.training.distributed import Ranks, is_sharded
from infrastructure.training.distributed.modules import unwrapped
from infrastructure.training.loss_scale import LossScale
from infrastructure.training.precision import Precision
from infrastructure.training.precision.frozen_base import FrozenBase
from infrastructure.training.precision.switch import PrecisionSwitch
from infrastructure.training.step_record import StepRecord

_HIGHEST_SCALE = torch.finfo(torch.float32).max
_MOST_STEPS = 2**53
_NEEDED = ("model", "optimizer", "loss_scale", "record", "precision")

log = structlog.get_logger()


class TrainerState:
    """Saves and restores model, optimizer, loss scale and counters, under any precision.

    Parameter names are those of the plain model, also under DDP. Of a `FrozenBase` only the hashes
    are saved.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        *,
        switch: PrecisionSwitch,
        loss_scale: LossScale,
        record: StepRecord,
        adaptive_clip: AdaptiveClip | None = None,
    ) -> None:
        self._model, self._optimizer = unwrapped(model), optimizer
        self._switch, self._loss_scale, self._record = switch, loss_scale, record
        self._adaptive_clip = adaptive_clip
        self._base = FrozenBase(self._model)

    def to_dict(self) -> dict[str, Any]:
        """See `FP16Trainer.state_dict`."""
        with self._switch.float32_parameters():
            weights, base = self._base.leave_out(self._model.state_dict())
            return {
                "model": weights,
                "frozen_base": base,
                "optimizer": self._optimizer.state_dict(),
                "loss_scale": self._loss_scale.state_dict(),
                "record": self._record.state_dict(),
                "precision": self._switch.precision.value,
                "adaptive_clip": self._adaptive_clip.state_dict() if self._adaptive_clip else None,
            }

    def load(self, state: dict[str, Any]) -> None:
        """See `FP16Trainer.load_state_dict`."""
        if not isinstance(state, dict):
            raise ValueError(f"a state is what state_dict() returned, got {type(state).__name__}")
        missing = [part for part in _NEEDED if part not in state]
        if missing:
            raise ValueError(
                f"the state lacks {', '.join(missing)}: pass what state_dict() returned"
            )
        _check_numbers("record", state["record"], self._record.state_dict(), _MOST_STEPS)
        self.restore_weights(state)
        self._record.load_state_dict(state["record"])
        if state["precision"] != self._switch.precision.value:
            log.warning("checkpoint_of_other_precision", saved=state["precision"])

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Restore model, optimizer and loss scale from *state*; the counters stay as they are.

        Raises:
            ValueError: The state does not fit model or optimizer; nothing has changed.
        """
        names, number = ("loss_scale", "growth_tracker"), (int, float)
        _check_numbers("loss_scale", state["loss_scale"], names, _HIGHEST_SCALE, number)
        clip, saved_clip = self._adaptive_clip, state.get("adaptive_clip")
        if clip is not None and saved_clip is not None:
            _check_numbers("adaptive_clip", saved_clip, clip.state_dict(), math.inf, number)
        with self._switch.float32_parameters():
            wrong = compare_optimizer(state["optimizer"], self._optimizer, self._model)
            if problems := in_one_line(wrong):
                raise ValueError(f"the state {problems}")
            base = state.get("frozen_base", {})  # earlier releases saved all parameters
            self._load_model(self._base.put_back(state["model"], base))
            self._optimizer.load_state_dict(state["optimizer"])
            own_tensors(self._optimizer)
        self._loss_scale.load_state_dict(state["loss_scale"])
        if state["precision"] != Precision.FP16.value:
            self._loss_scale.leave_floor()
        if clip is not None and saved_clip is not None:
            clip.load_state_dict(saved_clip)
        self._record.reset_consecutive()

    def _load_model(self, saved: dict[str, Any]) -> None:
        """Load all of *saved* or nothing."""
        problems = in_one_line(compare_model(saved, self._model))
        if not problems:
            self._model.load_state_dict(saved)
            return
        current = self._model.state_dict()
        before = {n: v.clone() if isinstance(v, Tensor) else v for n, v in current.items()}
        try:  # the model may have hooks that translate states of its earlier versions
            self._model.load_state_dict(saved)
        except Exception as error:
            self._model.load_state_dict(before)
            raise ValueError(f"the state belongs to another model: it {problems}") from error

    def layout(self, prefix: str) -> dict[str, Tensor]:
        """The sharded tensors by their place in `to_dict`; for optimizer state, its parameter.

        Args:
            prefix: Place of the state in a checkpoint, such as ``trainer/``.
        """
        if not is_sharded(self._model):
            return {}
        parameters = (p for group in self._optimizer.param_groups for p in group["params"])
        optimizer = {f"{prefix}optimizer/state/{i}": p for i, p in enumerate(parameters)}
        model = {f"{prefix}model/{name}": p for name, p in self._model.state_dict().items()}
        return {key: p for key, p in (optimizer | model).items() if hasattr(p, "placements")}

    def save(self, path: Path) -> None:
        """See `FP16Trainer.save_checkpoint`."""
        write_state(path, self.to_dict(), Ranks())

    def load_file(self, path: Path, device: torch.device) -> None:
        """See `FP16Trainer.load_checkpoint`."""
        try:
            if has_manifest(path):
                self.load(read_state(path, device, Ranks(), self.layout("")))
            else:
                self._load_original(path, device)
        except (KeyError, ValueError) as error:
            raise CheckpointError(
                path, f"does not fit ({error})", "load it into the model it was saved from"
            ) from error

    def _load_original(self, path: Path, device: torch.device) -> None:
        state = read_original(path, device)
        if is_sharded(self._model):
            raise ValueError("a sharded model cannot load it; load and save it on one device")
        if problems := in_one_line(compare_model(state["model"], self._model)):
            raise ValueError(problems)
        self.load({"loss_scale": self._loss_scale.state_dict(), **state})
        log.info("original_checkpoint_loaded", path=str(path), verified=False)


def _check_numbers(
    part: str, saved: object, names: Iterable[str], most: float, kinds: tuple[type, ...] = (int,)
) -> None:
    """Check that *saved* has *names*, and under every name a number from 0 to *most*.

    Raises:
        ValueError: A number is missing or unusable; the message names it.
    """
    if not isinstance(saved, dict):
        raise ValueError(f"the state has as {part} a {type(saved).__name__}, not numbers by name")
    for name in {**dict.fromkeys(names), **saved}:
        value = saved.get(name)
        if not isinstance(value, kinds) or not 0 <= cast("float", value) <= most:
            raise ValueError(f"the state has an unusable {part}: {name} is {value!r:.60}")
