"""Timing: variants interleaved in random order, so that what disturbs one disturbs all.

On a CPU the process's CPU time, which neighbours on the machine hardly move; on CUDA the time
between two events around a block of steps.
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
    """Run every block once a round, each round in another order.

    Args:
        blocks: What each is called, and a function that does a block of work and returns its cost.
        rounds: How often each runs.
        seed: Of the orders.

    Returns:
        The costs, a mapping a round.
    """
    order = list(blocks)
    generator = torch.Generator().manual_seed(seed)
    costs = []
    gc.collect()
    gc.freeze()  # so that the collection before each round has little to look through
    try:
        for _ in range(rounds):
            gc.collect()
            shuffled = torch.randperm(len(order), generator=generator).tolist()
            costs.append({order[i]: blocks[order[i]]() for i in shuffled})
    finally:
        gc.unfreeze()
    return costs


def seconds_of(work: Callable[[], None], device: torch.device) -> float:
    """Time *work*; waits for the device. No garbage is collected in it."""
    gc.disable()
    try:
        return _cuda_seconds(work) if device.type == "cuda" else _process_seconds(work)
    finally:
        gc.enable()


def _process_seconds(work: Callable[[], None]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def _cuda_seconds(work: Callable[[], None]) -> float:
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    work()
    ended.record()
    ended.synchronize()
    return float(begun.elapsed_time(ended)) / 1000.0
