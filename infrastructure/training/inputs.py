"""Inputs of a step besides the weights: batches on their device, and random generators."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch

from infrastructure.agent_contract import TrainingJob
from infrastructure.agent_contract.training_job import Batch


def to_device(batch: Batch, device: torch.device) -> Batch:
    """*batch* with every tensor on *device*."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def first_batches(job: TrainingJob, device: torch.device, count: int = 1) -> list[Batch]:
    """The first *count* batches of epoch 0, or fewer where it is shorter, on *device*.

    Raises:
        ValueError: The job yields no batches.
    """
    batches = iter(job.batches(0))
    taken = [to_device(batch, device) for batch in islice(batches, count)]
    if isinstance(batches, Generator):
        batches.close()
    if not taken:
        raise ValueError("the training job yields no batches for epoch 0")
    return taken


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


def same_random_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two results of `random_state`, of one device, are equal: nothing was drawn."""
    return one["python"] == other["python"] and all(
        one[name] is None or torch.equal(one[name], other[name]) for name in ("torch", "cuda")
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
