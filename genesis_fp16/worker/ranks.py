"""One attempt on several ranks: how a worker joins the others, and what rank 0 does for all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

import torch

from infrastructure.training.distributed.modules import process_group
from infrastructure.training.distributed.ranks import Ranks

T = TypeVar("T")


class StoppedError(Exception):
    """The daemon asked the run to stop while nothing was training."""


def join(device: torch.device, processes: int) -> AbstractContextManager[torch.device]:
    """Join the process group of *processes* ranks, which `worker_group` has started.

    Args:
        device: As `process_group` takes it; yielded as it is by one process alone.
        processes: Of the attempt.

    Raises:
        ValueError: There are fewer CUDA devices than ranks.
    """
    if processes == 1:
        return nullcontext(device)
    if device.type == "cuda" and processes > torch.cuda.device_count():
        raise ValueError(
            f"{processes} processes need a CUDA device each, and there are "
            f"{torch.cuda.device_count()}: lower the agent's PROCESSES_PER_RUN, or set "
            "GENESIS_DEVICE=cpu"
        )
    return process_group(device)


def led(ranks: Ranks, work: Callable[[], T]) -> T:
    """Let the leader alone do *work* while the others wait; what it returned, on every rank.

    Raises:
        StoppedError: *work* raised it; on every rank. After any other error of the leader the
            others fail too, since it leaves the group.
    """
    done: list[T] = []
    stopped = ""
    if ranks.leads:
        try:
            done.append(work())
        except StoppedError as error:
            stopped = str(error)
    done, stopped = ranks.same((done, stopped))
    if not done:
        raise StoppedError(stopped)
    return done[0]
