"""Timing: variants run interleaved in random order, so that a disturbance affects all of them.

On a CPU the process's CPU time, which other processes hardly change; on CUDA the time between two
events around a block of steps.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

K = TypeVar("K")


def interleave(
    blocks: Mapping[K, Callable[[], float]], rounds: int, seed: int
) -> list[dict[K, float]]:
    """Run every block once per round, in a random order.

    Args:
        blocks: Functions that do a block of work and return its cost, by name.
        rounds: Number of rounds.
        seed: Seed of the orders.

    Returns:
        A mapping of name to cost for each round.
    """
    order = list(blocks)
    generator = torch.Generator().manual_seed(seed)
    costs = []
    frozen_before = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()  # makes the collection before each round short
    try:
        for _ in range(rounds):
            gc.collect()
            shuffled = torch.randperm(len(order), generator=generator).tolist()
            costs.append({order[i]: blocks[order[i]]() for i in shuffled})
    finally:
        if not frozen_before:  # unfreezing knows all or nothing
            gc.unfreeze()
    return costs


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """Return the seconds that *work* takes; wait for the device, with garbage collection off."""
    gc.disable()
    try:
        return _cuda_seconds(work) if device.type == "cuda" else _process_seconds(work)
    finally:
        gc.enable()


def _process_seconds(work: Callable[[], None]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def _cuda_seconds(work: Callable[[], None]) -> float:
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    started.record()
    work()
    ended.record()
    ended.synchronize()
    return float(started.elapsed_time(ended)) / 1000.0
