"""Whether code draws from the global random generators of torch, Python and NumPy.

Python's state takes 8 us to read, so it is read only after the memory it lies in has changed.
"""

from __future__ import annotations

import ctypes
import random
import struct
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor

_TWISTER_BYTES = 2500  # 624 words and a position: what a Mersenne Twister keeps


class DrawDetector:
    """Finds out whether code draws from the global generators, and undoes it."""

    def __init__(self) -> None:
        self._torch = torch.default_generator.get_state()
        self._cuda: list[Tensor] = []
        self._python: tuple[Any, ...] = ()
        self._bits = get_bit_generator()
        self._numpy: dict[str, Any] = {}
        self._python_memory = self._numpy_memory = b""

    def begin(self) -> None:
        """Remember the states in force: those to which `found` compares."""
        self._torch = torch.default_generator.get_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
        if not self._python or self._python_drawn():
            self._python, self._python_memory = random.getstate(), _python_memory()
        if not self._numpy or self._numpy_drawn():
            self._bits, self._numpy = get_bit_generator(), np.random.get_state(legacy=False)
            self._numpy_memory = _numpy_memory(self._bits)

    def found(self) -> bool:
        """Whether anything was drawn since `begin`; puts the states of then in force again."""
        torch_drawn = _bytes(torch.default_generator.get_state()) != _bytes(self._torch)
        cuda_drawn = any(
            not torch.equal(torch.cuda.get_rng_state(index), state)
            for index, state in enumerate(self._cuda)
        )
        if not (torch_drawn or cuda_drawn or self._python_drawn() or self._numpy_drawn()):
            return False
        torch.default_generator.set_state(self._torch)
        for index, state in enumerate(self._cuda):
            torch.cuda.set_rng_state(state, index)
        random.setstate(self._python)
        set_bit_generator(self._bits)
        np.random.set_state(self._numpy)
        return True

    def _python_drawn(self) -> bool:
        if not self._python_memory:
            return random.getstate() != self._python
        kept = random._inst.gauss_next  # type: ignore[attr-defined]  # every second normal number
        return _python_memory() != self._python_memory or kept != self._python[2]

    def _numpy_drawn(self) -> bool:
        bits = get_bit_generator()
        if bits is not self._bits or _numpy_memory(bits) != self._numpy_memory:
            return True
        if not self._numpy_memory:
            return repr(np.random.get_state(legacy=False)) != repr(self._numpy)
        was_kept = self._numpy["has_gauss"]  # of every second normal number, as Python's
        return bool(was_kept) and not np.random.get_state(legacy=False)["has_gauss"]


def _bytes(state: Tensor) -> bytes:
    return state.numpy().tobytes()


def _numpy_memory(bits: np.random.BitGenerator) -> bytes:
    """What changes when *bits* are drawn from; empty if that is unknown."""
    if isinstance(bits, np.random.MT19937):
        return ctypes.string_at(bits.ctypes.state_address, _TWISTER_BYTES)
    return b""


def _python_twister() -> int | None:
    """Address of Python's Mersenne Twister, behind the object's header, if it lies there."""
    address = id(random._inst) + object.__basicsize__
    position, *words = struct.unpack("i624I", ctypes.string_at(address, _TWISTER_BYTES))
    return address if random.getstate()[1] == (*words, position) else None


_PYTHON_TWISTER = _python_twister()


def _python_memory() -> bytes:
    """What changes when Python's generator is drawn from; empty if it cannot be found."""
    return b"" if _PYTHON_TWISTER is None else ctypes.string_at(_PYTHON_TWISTER, _TWISTER_BYTES)
