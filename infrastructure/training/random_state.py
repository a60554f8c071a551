"""The state of the random generators a training may draw from."""

from __future__ import annotations

import random
from typing import Any

import torch


def seed_generators(seed: int) -> None:
    """Seed Python's and torch's global generators, CUDA's included."""
    random.seed(seed)
    torch.manual_seed(seed)


def random_state(device: torch.device) -> dict[str, Any]:
    """Python's, torch's and *device*'s generator states, loadable without unpickling."""
    return {
        "python": random.getstate(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore_random_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore what `random_state` returned; a state of another kind of device is left out."""
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"].cpu())
    if device.type == "cuda" and state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
