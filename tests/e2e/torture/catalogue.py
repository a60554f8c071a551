"""The kinds of fault, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tests.e2e.torture.round import Round

Play = Callable[[Round], None]


@dataclass(frozen=True)
class Fault:
    """One kind.

    Attributes:
        play: Starts runs and disturbs them; may leave the daemon stopped.
        quick: Whether it takes a few seconds, so that the test suite can afford it.
        forked: Whether it needs a daemon forked by us: it dies at one of its commits.
        disk: Whether it fills or stalls the home's own small file system.
        executors, databases: Those that it is for; empty for all.
    """

    name: str
    play: Play
    quick: bool = False
    forked: bool = False
    disk: bool = False
    executors: Collection[str] = ()
    databases: Collection[str] = ()

    def is_for(self, executor: str, database: str) -> bool:
        """Whether it can be played there."""
        return executor in (self.executors or (executor,)) and database in (
            self.databases or (database,)
        )


FAULTS: dict[str, Fault] = {}


def fault(name: str, **how: Any) -> Callable[[Play], Play]:
    """Register a kind of fault; *how* are the other attributes of `Fault`."""

    def register(play: Play) -> Play:
        FAULTS[name] = Fault(name, play, **how)
        return play

    return register
