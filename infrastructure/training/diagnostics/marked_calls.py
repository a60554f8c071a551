"""Surrounds an object's own calls, such as those of the trainer, to measure them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

Around = Callable[[str], AbstractContextManager[Any]]


class MarkedCalls:
    """Runs methods of *owner* inside a region, until they are `remove`d.

    Args:
        phases: Name of the region by name of the method.
        around: Function from the name to a region.
    """

    def __init__(self, owner: object, phases: Mapping[str, str], around: Around) -> None:
        self._attributes = vars(owner)
        self._before = {name: self._attributes.get(name) for name in phases}
        for name, phase in phases.items():
            self._attributes[name] = _marked(phase, getattr(owner, name), around)

    def remove(self) -> None:
        """Restore the methods."""
        for name, before in self._before.items():
            if before is None:
                del self._attributes[name]
            else:
                self._attributes[name] = before


def _marked(phase: str, call: Callable[..., Any], around: Around) -> Callable[..., Any]:
    def marked(*args: object, **kwargs: object) -> object:
        with around(phase):
            return call(*args, **kwargs)

    return marked
