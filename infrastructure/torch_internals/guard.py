"""Chooses between a private function of torch and the documented operations that replace it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeVar

import structlog
import torch

Function = TypeVar("Function", bound=Callable[..., object])
Part = TypeVar("Part")
log = structlog.get_logger()
UNAVAILABLE: dict[str, str] = {}
"""Reason each private function that was asked for and cannot be used is unavailable, by name."""


class UnavailableError(RuntimeError):
    """This torch lacks a private part for which no documented one exists.

    Args:
        name: The part.
        needed_for: What cannot work without it.
    """

    def __init__(self, name: str, needed_for: str) -> None:
        super().__init__(
            f"torch {torch.__version__} has no {name}, which {needed_for} needs: use a version of "
            "torch that the tests of this release have run with"
        )


def checked(name: str, works: Callable[[Function], bool], documented: Function) -> Function:
    """The function *name* of torch if it passes its check on this torch, else *documented*.

    Args:
        name: Private function, an attribute of ``torch``.
        works: Calls the function it is given and returns whether the results are right.
        documented: Does the same by documented operations.
    """
    function = part(torch, name, documented)
    if function is documented:
        return documented
    try:
        if works(function):
            return function
        problem = "gave a wrong result"
    except (TypeError, RuntimeError) as error:
        problem = str(error)
    UNAVAILABLE[name] = f"{name} of torch {torch.__version__} failed the start-up check: {problem}"
    return documented


def part(owner: object, name: str, otherwise: Part) -> Part:
    """The attribute *name* of *owner*, which belongs to torch, or *otherwise* if it has none."""
    attribute: Part | None = getattr(owner, name, None)
    if attribute is None:
        UNAVAILABLE[name] = f"torch {torch.__version__} has no {name}"
        return otherwise
    return attribute


@cache
def log_unavailable() -> None:
    """Log once what this torch lacks and documented operations replace."""
    for name, reason in UNAVAILABLE.items():
        log.warning("torch_internal_replaced", function=name, reason=reason)
