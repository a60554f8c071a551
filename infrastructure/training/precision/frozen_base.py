"""The frozen base under an adapter, which checkpoints hold by its hash alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from infrastructure.training.distributed.modules import whole_tensor
from infrastructure.training.precision.frozen_halves import HALF_TYPES

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 1 << 20  # numbers that are hashed at a time; 8 bytes each
_MULTIPLIERS = (-7046029254386353131, -4658895280553007687, -7723592293110705685)  # of splitmix64


class OtherBaseError(ValueError):
    """Weights were trained over another frozen base than that of the model.

    Args:
        differing: Name of each parameter that differs, with its hash in the file and in the model.
    """

    def __init__(self, differing: Mapping[str, tuple[str, str]]) -> None:
        name, (saved, present) = next(iter(differing.items()))
        more = f" (and {len(differing) - 1} more parameters differ)" if len(differing) > 1 else ""
        super().__init__(
            f"it was trained over another frozen base: {name} was {saved}, but the model has "
            f"{present}{more}; build the model with the base and dtype that it was trained over"
        )


class FrozenBase:
    """Leaves the frozen base of a model out of saved weights, and puts it back.

    The base is every frozen parameter in a half type, which nobody can train, and every frozen
    parameter of a peft model, which peft does not save either. A parameter that something has
    changed since is saved like all others. The hash is of the numbers, so a change through
    ``.data`` counts too.

    Args:
        model: Model as it was built; a sharded one leaves nothing out, but loads what others left.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        named = dict(model.named_parameters(remove_duplicate=False))
        adapted = {
            parameter
            for module in model.modules()
            if hasattr(module, "peft_config")
            for parameter in module.parameters()
        }
        self._hashes = _hashes(
            {
                name: parameter
                for name, parameter in named.items()
                if not parameter.requires_grad
                and not hasattr(parameter, "placements")
                and (parameter.dtype in HALF_TYPES or parameter in adapted)
            }
        )

    def leave_out(self, state: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
        """Split *state*, of the model or a copy, into what is saved and the hashes of the rest.

        Reads the device if there is a base.

        Raises:
            RuntimeError: An adapter is merged into its base: it would count twice after loading.
        """
        modules = self._model.modules() if self._hashes else ()
        if any(getattr(module, "merged", False) for module in modules):
            raise RuntimeError(
                "an adapter is merged into its base, and would count twice in what is loaded: call "
                "unmerge_adapter() before saving"
            )
        base = {name: state[name] for name in self._hashes if name in state}
        hashes = {n: h for n, h in _hashes(base).items() if h == self._hashes[n]}
        return {name: value for name, value in state.items() if name not in hashes}, hashes

    def put_back(self, state: dict[str, Any], hashes: Mapping[str, str]) -> dict[str, Any]:
        """*state* with the model's own tensors in the place of those that were left out.

        Args:
            state, hashes: What `leave_out` returned, read from a file.

        Raises:
            OtherBaseError: The model's tensors are not those that were left out.
            ValueError: *hashes* is not a mapping.
        """
        if not isinstance(hashes, Mapping):
            raise ValueError(f"the frozen base is a {type(hashes).__name__}, not hashes by name")
        if not hashes or not isinstance(state, Mapping):
            return state
        own = {name: value for name, value in self._model.state_dict().items() if name in hashes}
        present = _hashes({name: whole_tensor(value) for name, value in own.items()})
        differing = {
            name: (saved, present.get(name, "no such parameter"))
            for name, saved in hashes.items()
            if present.get(name) != saved
        }
        if differing:
            raise OtherBaseError(differing)
        return {**state, **own}


@torch.no_grad()
def _hashes(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Type, shape and a 64-bit hash of each tensor; reads the device."""
    weights = {
        device: _weights_of_places(device) for device in {t.device for t in tensors.values()}
    }
    return {
        name: f"{str(tensor.dtype).removeprefix('torch.')}{[*tensor.shape]} "
        f"{_hash(tensor, weights[tensor.device]):016x}"
        for name, tensor in tensors.items()
    }


def _hash(tensor: Tensor, weights: Tensor) -> int:
    """Sum of the bits of each number times the weight of its place, modulo 2**64."""
    numbers = tensor.detach().flatten()
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for bits in numbers.view(_INTEGERS[numbers.element_size()]).split(_CHUNK):
        total = total * _MULTIPLIERS[0] + (bits.long() * weights[: len(bits)]).sum()
    return int(total.item()) % 2**64


def _weights_of_places(device: torch.device) -> Tensor:
    """Numbers without a pattern, the same on every device: the output of splitmix64."""
    weights = torch.arange(1, _CHUNK + 1, device=device) * _MULTIPLIERS[0]
    for shift, multiplier in ((30, _MULTIPLIERS[1]), (27, _MULTIPLIERS[2])):
        weights = (weights ^ (weights >> shift)) * multiplier
    return weights ^ (weights >> 31)
