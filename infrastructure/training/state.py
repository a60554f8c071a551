"""The state of a trainer that checkpoints hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.training.checkpoints import CheckpointError, read_state, write_state
from infrastructure.training.checkpoints.original import (
    OPTIONAL_SETTINGS,
    check_fits,
    has_manifest,
    read_original,
)
from infrastructure.training.distributed import Ranks, is_sharded
from infrastructure.training.distributed.modules import unwrapped
from infrastructure.training.loss_scale import LossScale
from infrastructure.training.optimizer_step import AdaptiveClip
from infrastructure.training.precision import Precision
from infrastructure.training.precision.switch import PrecisionSwitch
from infrastructure.training.step_record import StepRecord

_NEEDED = ("model", "optimizer", "loss_scale", "record", "precision")

log = structlog.get_logger()


class TrainerState:
    """Saves and restores model, optimizer, loss scale and counters, under any precision.

    Parameter names are those of the plain model, also under DDP.
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

    def to_dict(self) -> dict[str, Any]:
        """See `FP16Trainer.state_dict`."""
        with self._switch.float32_parameters():
            return {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "loss_scale": self._loss_scale.state_dict(),
                "record": self._record.state_dict(),
                "precision": self._switch.precision.value,
                "adaptive_clip": self._adaptive_clip.state_dict() if self._adaptive_clip else None,
            }

    def load(self, state: dict[str, Any]) -> None:
        """See `FP16Trainer.load_state_dict`."""
        missing = [part for part in _NEEDED if part not in state]
        if missing:
            raise ValueError(
                f"the state lacks {', '.join(missing)}: pass what state_dict() returned"
            )
        self.restore_weights(state)
        self._record.load_state_dict(state["record"])
        if state["precision"] != self._switch.precision.value:
            log.warning("checkpoint_of_other_precision", saved=state["precision"])

    def restore_weights(self, state: dict[str, Any]) -> None:
        """Restore model, optimizer and loss scale from *state*; the counters stay as they are.

        Raises:
            ValueError: The state belongs to another model or optimizer.
        """
        _check_kind(state["optimizer"], self._optimizer)
        with self._switch.float32_parameters():
            try:
                self._model.load_state_dict(state["model"])
            except RuntimeError as error:
                raise ValueError(f"the state belongs to another model: {error}") from error
            self._optimizer.load_state_dict(state["optimizer"])
        self._loss_scale.load_state_dict(state["loss_scale"])
        if state["precision"] != Precision.FP16.value:
            self._loss_scale.leave_floor()
        if self._adaptive_clip is not None and state.get("adaptive_clip"):
            self._adaptive_clip.load_state_dict(state["adaptive_clip"])
        self._record.reset_consecutive()

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
        check_fits(state, self._model, self._optimizer)
        self.load({"loss_scale": self._loss_scale.state_dict(), **state})
        log.info("original_checkpoint_loaded", path=str(path), verified=False)


def _check_kind(saved: dict[str, Any], optimizer: Optimizer) -> None:
    """Check that *saved* is of an optimizer with the settings of *optimizer*.

    Raises:
        ValueError: Each has settings that the other lacks.
    """
    for group, own in zip(saved["param_groups"], optimizer.param_groups, strict=False):
        lacking = set(optimizer.defaults) - set(group) - OPTIONAL_SETTINGS
        others = set(group) - set(own) - OPTIONAL_SETTINGS
        if lacking and others:
            raise ValueError(
                f"the state belongs to another optimizer than {type(optimizer).__name__}: it has "
                f"{', '.join(sorted(others))}, but not {', '.join(sorted(lacking))}"
            )
