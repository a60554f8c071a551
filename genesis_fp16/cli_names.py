"""Names of agents on the command line: a misspelt one is refused, with the one that was meant."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from genesis_fp16.store import Store

_LONGEST = 80  # characters of a wrong name that are shown
_RECENT_RUNS = 500


def installed_agent(name: str | None, store: Store | None = None) -> str | None:
    """*name* itself, if an agent of that name is installed or known to *store*.

    Args:
        name: None for all agents.
        store: Where agents count that have left something behind; None: the installed only.

    Raises:
        BadParameter: No such agent; an override of it would never speak.
    """
    from genesis_fp16.plugins import agent_entry_points

    if name is None or name in (names := set(agent_entry_points())):
        return name
    if store is not None:
        if store.runs(name, limit=1) or store.guard.history(name, limit=1):
            return name
        overrides = {override.agent for override in store.overrides.in_force() if override.agent}
        if name in overrides:
            return name
        past = {run.agent for run in store.runs(limit=_RECENT_RUNS)}
        names |= overrides | past | set(store.guard.standing())
    close = difflib.get_close_matches(name[:_LONGEST], names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    known = "installed" if store is None else "known"
    raise typer.BadParameter(
        f"no agent is named {name[:_LONGEST]!r}; {meant}{known}: {', '.join(sorted(names))}"
    )
