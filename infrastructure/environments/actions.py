"""The actions that an agent's function chooses, with the errors of a wrong one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.environments.course import Array

if TYPE_CHECKING:
    from gymnasium import Space

Act: TypeAlias = Callable[[Forward, Tensor, torch.Generator, MutableMapping[str, Tensor]], Tensor]
"""Function from the policy, the observations ``[N, …]`` of N environments, a random generator, both
on the run's device, and the policy's state to the actions ``[N, …]``.

It must draw from that generator alone. A recurrent policy keeps tensors ``[N, …]`` in its state,
which is empty when a round begins, and 0 for an environment in which an episode begins or whose
action was not finite."""


class UnsuitableActionsError(TypeError):
    """An agent's function returned something other than a tensor with an action for each row.

    Args:
        act: The function.
        got: What it returned.
        observations: What it was given.
        space: Action space of all environments.
    """

    def __init__(self, act: Act, got: object, observations: Tensor, space: Space[Array]) -> None:
        returned = f"a {type(got).__name__}"
        if isinstance(got, Tensor):
            returned = f"a tensor of shape {list(got.shape)} and {got.dtype}"
        super().__init__(
            f"{name_of_function(act)} returned {returned} for observations of shape "
            f"{list(observations.shape)}: return a torch tensor of shape {list(space.shape or ())} "
            f"whose values fit {space.dtype}, an action for each environment"
        )


def checked_actions(got: object, act: Act, observations: Tensor, space: Space[Array]) -> Array:
    """What *act* returned for *observations* as a new array of the shape of *space*.

    Sizes of 1 may be missing or be too many.

    Raises:
        UnsuitableActionsError: It is something else.
    """
    shape = space.shape or ()
    if not isinstance(got, Tensor) or got.is_complex() or _sizes(got.shape) != _sizes(shape):
        raise UnsuitableActionsError(act, got, observations, space)
    chosen = got.detach().cpu()
    if chosen.dtype == torch.bfloat16:  # numpy has no such type
        chosen = chosen.float()
    array: Array = chosen.numpy().reshape(shape).copy()
    return array


def in_type(chosen: Array, act: Act, space: Space[Array]) -> Array:
    """The finite actions *chosen* in the type of *space*.

    Raises:
        ValueError: A value does not fit that type.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        actions: Array = chosen.astype(space.dtype)
    fits = np.isfinite(actions).all()
    if not np.issubdtype(actions.dtype, np.inexact):
        fits = (actions == chosen).all()
    if not fits:
        raise ValueError(
            f"{name_of_function(act)} returned actions that do not fit {space.dtype}, such as "
            f"{chosen.flat[int(np.argmax(~np.isclose(chosen, actions)))]}: round or clip them"
        )
    return actions


def check_state(state: Mapping[str, object], act: Act, environments: int) -> None:
    """Raise if the policy's *state* holds anything but tensors with a row for each environment.

    Raises:
        TypeError: It does; the message names function and entry.
    """
    for name, value in state.items():
        if isinstance(value, Tensor) and value.ndim and len(value) == environments:
            continue
        got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise TypeError(
            f"{name_of_function(act)} left {name!r} in the policy's state with {got}: keep tensors "
            f"whose first size is that of the environments, {environments}; transpose the state of "
            "a GRU of several layers, and keep that of an LSTM under two names"
        )


def name_of_function(function: Callable[..., object]) -> str:
    """Module and name of *function* for a person."""
    name = getattr(function, "__qualname__", None)
    return f"{function.__module__}.{name}" if name else repr(function)


def _sizes(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]
