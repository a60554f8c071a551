"""Compares a saved state with model and optimizer, before any of it is restored.

torch itself restores weights until it meets one that does not fit, and takes any state of an
optimizer: a tensor that is missing or of a wrong shape fails in the next step, without its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module, Parameter
from torch.optim import Optimizer

from infrastructure.training.multi_optimizer import members_of

_MOST_NAMED = 3  # problems in one message
# Settings of how an optimizer computes, and those that older versions of torch do not save.
_OPTIONAL_SETTINGS = {
    *("amsgrad", "capturable", "decoupled_weight_decay", "differentiable", "foreach", "fused"),
    *("initial_lr", "maximize", "nesterov"),
}
_NOT_REPLAYED = {"params", "capturable", "differentiable", "foreach", "fused"}


def in_one_line(problems: Iterable[str]) -> str:
    """The first *problems*; empty if there are none."""
    texts = list(problems)
    more = len(texts) - _MOST_NAMED
    return "; ".join(texts[:_MOST_NAMED] + ([f"and {more} more"] if more > 0 else []))


def compare_model(saved: object, model: Module) -> Iterator[str]:
    """What is wrong with *saved* as the state of *model*: names, shapes, kinds of tensors."""
    if not isinstance(saved, Mapping) or not all(isinstance(name, str) for name in saved):
        yield "has a model that is not tensors by name"
        return
    state = model.state_dict()
    yield from (f"lacks {name}" for name in state if name not in saved)
    yield from (f"has {name}, which the model lacks" for name in saved if name not in state)
    for name, value in state.items():
        if name in saved and isinstance(value, Tensor):
            yield from _compare_tensor(name, saved[name], tuple(value.shape), _kind(value))


def compare_optimizer(saved: object, optimizer: Optimizer, model: Module) -> Iterator[str]:
    """What is wrong with *saved* as the state of *optimizer*, over parameters of *model*.

    What one of torch's optimizers keeps for a parameter is taken from a small parameter and the
    same settings. Of other optimizers, only groups and names of settings are compared.
    """
    own = optimizer.state_dict()
    is_torchs = is_optimizer_state(own)  # that of an optimizer around another may not be
    if not is_optimizer_state(saved) if is_torchs else not _has_keys(saved, own):
        yield f"has an optimizer without {' and '.join(own)}"
        return
    if not is_torchs:
        return
    state = cast("dict[str, Any]", saved)
    groups, own_groups = state["param_groups"], optimizer.param_groups
    sizes, own_sizes = (
        [len(g["params"]) for g in param_groups] for param_groups in (groups, own_groups)
    )
    if sizes != own_sizes:
        yield f"has an optimizer of {sizes} parameters by group where this one has {own_sizes}"
        return
    names = {parameter: name for name, parameter in model.named_parameters()}
    holders = [member for member in members_of(optimizer) for _ in member.param_groups]
    for group, own_group, holder in zip(groups, own_groups, holders, strict=True):
        if difference := _other_settings(group, own_group, holder):
            yield difference
            continue
        yield from _compare_group(type(holder), state["state"], group, own_group, names)


def own_tensors(optimizer: Optimizer) -> None:
    """Give each tensor that *optimizer* has loaded memory of its own, laid out as its parameter.

    torch takes over tensors as they were saved: overlapping, shared or with other strides, for
    example those of a model in ``channels_last``. Fused kernels would then write elsewhere.
    """
    seen: set[int] = set()
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for parameter in parameters:  # the state may have keys that are none
        entry = optimizer.state.get(parameter, {})
        for key, value in entry.items():
            if type(value) not in (Tensor, Parameter) or value.layout is not torch.strided:
                continue  # sharded, for example
            whole = value.shape == parameter.shape
            fits = value.stride() == parameter.stride() if whole else value.is_contiguous()
            storage = value.untyped_storage().data_ptr()
            if fits and storage not in seen and not value.requires_grad:
                seen.add(storage)
                continue
            owner = parameter if whole else value
            strides = torch.preserve_format if whole else torch.contiguous_format
            new = torch.empty_like(
                owner, dtype=value.dtype, device=value.device, memory_format=strides
            )
            entry[key] = new.detach().copy_(value.detach())


def is_optimizer_state(value: object) -> bool:
    """Whether *value* has the structure of what ``Optimizer.state_dict`` returns."""
    if not isinstance(value, dict):
        return False
    states, groups = value.get("state"), value.get("param_groups")
    if not isinstance(states, dict) or not isinstance(groups, list):
        return False
    if not all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in groups):
        return False
    numbers = [number for group in groups for number in group["params"]]
    return (
        all(isinstance(number, int) for number in numbers)
        and len(set(numbers)) == len(numbers)
        and all(isinstance(state, dict) for state in states.values())
    )


def _has_keys(value: object, keys: Iterable[str]) -> bool:
    return isinstance(value, dict) and value.keys() == set(keys)


def _other_settings(
    group: Mapping[str, Any], own_group: Mapping[str, Any], optimizer: Optimizer
) -> str | None:
    lacking = set(optimizer.defaults) - set(group) - _OPTIONAL_SETTINGS
    if not lacking:
        return None
    others = ", ".join(sorted(map(str, set(group) - set(own_group) - _OPTIONAL_SETTINGS)))
    return (
        f"belongs to another optimizer than {type(optimizer).__name__}: it has "
        f"{others or 'no setting of its own'}, but not {', '.join(sorted(lacking))}"
    )


def _compare_group(
    kind: type[Optimizer],
    states: Mapping[int, Mapping[str, object]],
    group: Mapping[str, Any],
    own_group: Mapping[str, Any],
    names: Mapping[Parameter, str],
) -> Iterator[str]:
    if not kind.__module__.startswith("torch.optim"):
        return
    fresh: dict[int, Mapping[str, object]] = {}
    for number, parameter in zip(group["params"], own_group["params"], strict=True):
        entry = states.get(number)
        if not entry:  # it has had no gradient yet
            continue
        if parameter.ndim not in fresh:
            try:
                fresh[parameter.ndim] = _fresh_state(kind, group, parameter.ndim)
            except Exception as error:
                yield f"has settings that {kind.__name__} refuses ({error})"
                return
        for key, value in fresh[parameter.ndim].items():
            what = f"{key} of {names[parameter]}"
            if entry.get(key) is None:
                yield f"lacks {what}"
            elif isinstance(value, Tensor) and value.ndim:
                shape = _at_full_size(value, parameter)
                yield from _compare_tensor(what, entry[key], shape, _kind(value), "it takes")
            elif not _is_number(entry[key]):
                yield f"has as {what} {_kind(entry[key])} where it takes a number"


def _small_shape(ndim: int) -> tuple[int, ...]:
    """A shape with another size in each dimension, none of them 1."""
    return tuple(range(2, 2 + ndim))


def _fresh_state(kind: type[Optimizer], group: Mapping[str, Any], ndim: int) -> dict[str, object]:
    """What an optimizer with the settings of *group* keeps for a parameter after one step."""
    parameter = Parameter(torch.zeros(_small_shape(ndim)))
    accepted = inspect.signature(kind).parameters.keys() - _NOT_REPLAYED
    settings = {name: value for name, value in group.items() if name in accepted}
    optimizer = cast("Any", kind)([parameter], **settings)
    parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        inspect.unwrap(type(optimizer).step)(optimizer)  # no hooks, no import of torch's compiler
    return dict(optimizer.state[parameter])


def _at_full_size(value: Tensor, parameter: Parameter) -> tuple[int, ...]:
    """The shape that corresponds to *value* of `_fresh_state` for *parameter*."""
    full = dict(zip(_small_shape(parameter.ndim), parameter.shape, strict=True))
    return tuple(full.get(size, size) for size in value.shape)


def _compare_tensor(
    name: str, saved: object, shape: tuple[int, ...], kind: str, owner: str = "the model has"
) -> Iterator[str]:
    if not isinstance(saved, Tensor) or _kind(saved) != kind:
        yield f"has as {name} {_kind(saved)} where {owner} {kind}"
    elif tuple(saved.shape) != shape:
        yield f"has {name} of shape {tuple(saved.shape)} where {owner} {shape}"


def _kind(value: object) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    if value.is_meta:
        return "a tensor without data"
    if value.is_complex():
        number = "a complex"
    else:
        number = "a real" if value.is_floating_point() else "an integer"
    return f"{number} {str(value.layout).removeprefix('torch.')} tensor"


def _is_number(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1 and not value.is_complex() and not value.is_meta
    return isinstance(value, int | float)
