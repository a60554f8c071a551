"""Optimizers with ``train()`` and ``eval()``, such as schedulefree's.

They step one set of weights and average it into another, which is the one to evaluate and publish.
``eval()`` writes the average into the parameters, and ``train()`` writes back what is stepped.
A checkpoint holds what is stepped, and the optimizer's state, from which the average follows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer

from infrastructure.training.multi_optimizer import members_of


def averaging_optimizers(*optimizers: Optimizer) -> list[Any]:
    """Those of *optimizers* and their members that have ``train()`` and ``eval()``."""
    members = [member for optimizer in optimizers for member in members_of(optimizer)]
    return [o for o in members if hasattr(o, "train") and hasattr(o, "eval")]


@contextmanager
def evaluation_weights(*optimizers: Optimizer) -> Iterator[None]:
    """Inside the block the parameters of *optimizers* are the weights to evaluate.

    Afterwards they have their bits again, which ``train()`` alone would round. That takes memory
    for a second set of weights, and nothing for optimizers without ``eval()``.
    """
    averaging = averaging_optimizers(*optimizers)
    for averaged in averaging:
        averaged.train()  # a loaded state may be that of eval()
    parameters = [p for o in averaging for group in o.param_groups for p in group["params"]]
    trained = [p.detach().clone() for p in parameters]
    for averaged in averaging:
        averaged.eval()
    try:
        yield
    finally:
        for averaged in averaging:
            averaged.train()
        with torch.no_grad():
            for parameter, value in zip(parameters, trained, strict=True):
                parameter.copy_(value)


def use_evaluation_weights(*optimizers: Optimizer) -> None:
    """Leave the weights to evaluate in the parameters: no step follows."""
    for averaged in averaging_optimizers(*optimizers):
        averaged.eval()
