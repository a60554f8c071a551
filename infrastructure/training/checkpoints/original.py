"""Reads checkpoints of the original trainer: state dicts by name in one file of `torch.save`.

The keys are ``model_state_dict``, ``optimizer_state_dict``, ``training_steps``,
``overflow_steps``, ``fp16_active`` and, if that is true, ``scaler_state_dict`` of a `GradScaler`.
Such files have no manifest, so a damaged number in one goes unnoticed. They are never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from infrastructure.training.checkpoints.checkpoint import CheckpointError, manifest_path

_MOST_NAMED = 3  # problems in one message
_HIGHEST_SCALE = 2.0**127  # float32's largest power of two
_HIGHEST_COUNT = 2**31
_REMEDY = "load a checkpoint that FP16Trainer.save_checkpoint wrote, or restore this one"
# Settings of how an optimizer computes, and those that older versions of torch do not save.
OPTIONAL_SETTINGS = {
    *("amsgrad", "capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused"),
    *("initial_lr", "maximize", "nesterov"),
}
_SHAPED_LIKE_PARAMETER = {
    *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum"),
}


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
        saved = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises many types of exceptions for damaged bytes
        what = f"has no {manifest_path(path).name}, and torch cannot read it as plain tensors"
        raise CheckpointError(path, f"{what} ({type(error).__name__})", _REMEDY) from None
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

    The shapes are not checked: see `check_fits`.
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
    if not _is_optimizer_state(saved.get("optimizer_state_dict")):
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
        isinstance(name, str) and isinstance(each, kind) for name, each in value.items()
    )


def _is_optimizer_state(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    states, groups = value.get("state"), value.get("param_groups")
    return (
        isinstance(states, dict)
        and all(isinstance(each, dict) for each in states.values())
        and isinstance(groups, list)
        and all(isinstance(group, dict) and _are_numbers(group.get("params")) for group in groups)
    )


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, int) for each in value)


def _is_scaler_state(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    scale = value.get("scale")
    is_scale = isinstance(scale, float | int) and 0.0 < scale <= _HIGHEST_SCALE
    return is_scale and _is_count(value.get("_growth_tracker"))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _HIGHEST_COUNT


def check_fits(state: Mapping[str, Any], model: Module, optimizer: Optimizer) -> None:
    """Check that a state of `read_original` fits, before any of it is loaded.

    Raises:
        ValueError: Names, shapes or the kind of optimizer differ; the message names them.
    """
    problems = [*_compare_model(state["model"], model), *_compare(state["optimizer"], optimizer)]
    if problems:
        more = len(problems) - _MOST_NAMED
        shown = problems[:_MOST_NAMED] + ([f"and {more} more"] if more > 0 else [])
        raise ValueError("; ".join(shown))


def _compare_model(saved: Mapping[str, Tensor], model: Module) -> list[str]:
    own = model.state_dict()
    problems = [f"lacks {name}" for name in own if name not in saved]
    problems += [f"has {name}, which the model lacks" for name in saved if name not in own]
    for name, value in own.items():
        if name not in saved or not isinstance(value, Tensor):
            continue
        if saved[name].shape != value.shape:
            shapes = f"{tuple(saved[name].shape)} where the model has {tuple(value.shape)}"
            problems.append(f"has {name} of shape {shapes}")
        elif _kind(saved[name]) != _kind(value):
            kinds = f"{_kind(saved[name])} where the model has {_kind(value)}"
            problems.append(f"has as {name} {kinds}")
    return problems


def _kind(value: Tensor) -> str:
    if value.is_complex():
        number = "a complex"
    else:
        number = "a real" if value.is_floating_point() else "an integer"
    return f"{number} {str(value.layout).removeprefix('torch.')} tensor"


def _compare(saved: Mapping[str, Any], optimizer: Optimizer) -> list[str]:
    groups, own_groups = saved["param_groups"], optimizer.param_groups
    sizes, own_sizes = ([len(g["params"]) for g in each] for each in (groups, own_groups))
    if sizes != own_sizes:
        return [f"has an optimizer of {sizes} parameters by group where this one has {own_sizes}"]
    problems = []
    for group, own in zip(groups, own_groups, strict=True):
        settings = (set(each) - OPTIONAL_SETTINGS for each in (group, own))
        if differing := next(settings) ^ next(settings):
            problems.append(
                f"was saved by another optimizer than {type(optimizer).__name__}: only one of "
                f"them has {', '.join(sorted(map(str, differing)))}"
            )
        for index, parameter in zip(group["params"], own["params"], strict=True):
            problems += [
                f"has {name} of shape {tuple(value.shape)} for a parameter of shape "
                f"{tuple(parameter.shape)}"
                for name, value in saved["state"].get(index, {}).items()
                if name in _SHAPED_LIKE_PARAMETER
                and isinstance(value, Tensor)
                and value.shape != parameter.shape
            ]
    return problems
