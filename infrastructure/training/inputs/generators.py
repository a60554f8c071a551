"""The random generators a training may draw from: seed, save, compare and restore them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seed Python's and torch's global generators, CUDA's included."""
    random.seed(seed)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """States of Python's, torch's and *device*'s generators, loadable without unpickling."""
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned; the state of another kind of device is ignored."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


def same_random_state(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two results of `random_state`, of one device, are equal: nothing was drawn."""
    return before["python"] == after["python"] and all(
        before[name] is None or torch.equal(before[name], after[name]) for name in ("torch", "cuda")
    )


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Restore the random generators of Python, NumPy, torch and *device* at the block's end."""
    before, numpy_before = random_state(device), np.random.get_state()
    try:
        yield
    finally:
        restore_random_state(before, device)
        np.random.set_state(numpy_before)
