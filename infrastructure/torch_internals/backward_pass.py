"""Whether code runs in a backward pass."""

from __future__ import annotations

import torch

from infrastructure.torch_internals.guard import UnavailableError


def in_own_backward() -> bool:
    """Whether an operation's own backward code runs, and no forward pass that is repeated there.

    Raises:
        UnavailableError: This torch does not tell.
    """
    task = getattr(torch._C, "_current_graph_task_id", None)
    if task is None:
        raise UnavailableError("torch._C._current_graph_task_id", "the precision lab")
    return task() != -1 and not torch.is_grad_enabled()
