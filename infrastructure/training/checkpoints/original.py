"""Reads checkpoints of the original trainer: state dicts by name in one file of `torch.save`.

The keys are ``model_state_dict``, ``optimizer_state_dict``, ``training_steps``,
``overflow_steps``, ``fp16_active`` and, if that is true, ``scaler_state_dict`` of a `GradScaler`.
Such files have no manifest, so a damaged number in one goes unnoticed. They are never written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from infrastructure.training.checkpoints.checkpoint import CheckpointError, manifest_path
from infrastructure.training.checkpoints.fit import is_optimizer_state
from infrastructure.training.tensor_files import TensorFileError, read_tensors

_HIGHEST_SCALE = 2.0**127  # float32's largest power of two
_HIGHEST_COUNT = 2**31
_REMEDY = "load a checkpoint that FP16Trainer.save_checkpoint wrote, or restore this one"


def has_manifest(path: Path) -> bool:
    """Whether the checkpoint at *path* is one of ours rather than of the original trainer."""
    return manifest_path(path).exists() or not path.is_file()


def read_original(path: Path, device: torch.device) -> dict[str, Any]:
    """Read the checkpoint at *path*, without unpickling, as a state of `TrainerState`.

    Without a `GradScaler` in it, the state has no ``loss_scale``. The original trainer did not
    count overflows among its steps; here they count.

    Raises:
        CheckpointError: It is not such a checkpoint; the message names what is wrong.
    """
    try:
        saved = read_tensors(path, device)
    except TensorFileError as error:
        what = f"has no {manifest_path(path).name}, and torch cannot read it as plain tensors"
        raise CheckpointError(path, f"{what} ({error})", _REMEDY) from None
    if problem := next(_problems(saved), ""):
        what = f"has no {manifest_path(path).name}, and as a checkpoint of the original trainer it"
        raise CheckpointError(path, f"{what} {problem}", _REMEDY)
    scaler = saved.get("scaler_state_dict")
    steps, overflow = saved["training_steps"], saved["overflow_steps"]
    fp16 = bool(saved.get("fp16_active"))
    state = {
        "model": dict(saved["model_state_dict"]),
        "optimizer": saved["optimizer_state_dict"],
        "record": {
            "training_steps": steps + overflow,
            "fp16_steps": steps + overflow if fp16 else 0,
            "no_gradient_steps": 0,
            "overflow_steps": overflow,
            "nonfinite_loss_steps": 0,
        },
        "precision": "fp16" if fp16 else "fp32",
    }
    if scaler:
        tracker = scaler["_growth_tracker"]
        state["loss_scale"] = {"loss_scale": float(scaler["scale"]), "growth_tracker": tracker}
    return state


def _problems(saved: object) -> Iterator[str]:
    """What is wrong with the content of a checkpoint; only the first one is meaningful.

    Names and shapes are compared later: see `compare_model` and `compare_optimizer`.
    """
    if not isinstance(saved, dict):
        yield f"holds a {type(saved).__name__}, not a dict"
        return
    needed = ["model_state_dict", "optimizer_state_dict", "training_steps", "overflow_steps"]
    if saved.get("fp16_active") is True:
        needed.append("scaler_state_dict")
    missing = [key for key in needed if saved.get(key) in (None, {})]
    if missing:
        held = ", ".join(map(str, list(saved)[:8])) or "nothing"
        yield f"lacks {', '.join(missing)} (it holds {held})"
    if not _maps_names_to(Tensor, saved.get("model_state_dict")):
        yield "has a model_state_dict that is not tensors by name"
    if not is_optimizer_state(saved.get("optimizer_state_dict")):
        yield "has an optimizer_state_dict without state and param_groups"
    for key in ("training_steps", "overflow_steps"):
        if not _is_count(saved.get(key)):
            yield f"has {key} that are not a count"
    if not isinstance(saved.get("fp16_active", False), bool):
        yield "has fp16_active that is neither True nor False"
    scaler = saved.get("scaler_state_dict")
    if scaler and not _is_scaler_state(scaler):
        yield "has a scaler_state_dict without a scale above 0 and a growth tracker"


def _maps_names_to(kind: type, value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(item, kind) for name, item in value.items()
    )


def _is_scaler_state(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    scale = value.get("scale")
    is_scale = isinstance(scale, float | int) and 0.0 < scale <= _HIGHEST_SCALE
    return is_scale and _is_count(value.get("_growth_tracker"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _HIGHEST_COUNT
