"""The kinds of fault, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.torture.round import Round

Play = Callable[[Round], None]


@dataclass(frozen=True)
class Fault:
    """One kind.

    Attributes:
        play: Starts runs and disturbs them; may leave the daemon stopped.
        quick: Whether it takes a few seconds, so that the test suite can afford it.
        forked: Whether it needs a daemon forked by us: it dies at one of its commits.
        disk: Whether it fills the home's own small file system.
    """

    name: str
    play: Play
    quick: bool = False
    forked: bool = False
    disk: bool = False


FAULTS: dict[str, Fault] = {}


def fault(
    name: str, *, quick: bool = False, forked: bool = False, disk: bool = False
) -> Callable[[Play], Play]:
    """Register a kind of fault."""

    def register(play: Play) -> Play:
        FAULTS[name] = Fault(name, play, quick, forked, disk)
        return play

    return register
