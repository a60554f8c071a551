"""Words of the command line: what is no text, or names no agent, is refused."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from genesis_fp16.domain.errors import GenesisError
from infrastructure.events.plain_text import plain

if TYPE_CHECKING:
    from genesis_fp16.store import Store

_LONGEST = 80  # characters of a wrong name that are shown
_RECENT_RUNS = 500


class UnreadableWordError(GenesisError, ValueError):
    """A word of the command line is no UTF-8."""

    exit_code = 2


def check_words(words: Sequence[str]) -> None:
    """Refuse *words* of which one holds bytes that are no text; no store could keep it.

    Raises:
        UnreadableWordError: It says which.
    """
    for number, word in enumerate(words, start=1):
        try:
            word.encode()
        except UnicodeEncodeError as error:
            shown = plain(os.fsencode(word).decode(errors="backslashreplace"), _LONGEST)
            raise UnreadableWordError(
                f"word {number} of the command line is not UTF-8: '{shown}'; write it anew"
            ) from error


def agents_of_runs(store: Store) -> set[str]:
    """The agents of the newest runs."""
    return {run.agent for run in store.runs(limit=_RECENT_RUNS)}


def installed_agent(name: str | None, store: Store | None = None) -> str | None:
    """*name* itself, if an agent of that name is installed or known to *store*.

    Args:
        name: None for all agents.
        store: Where agents count that have left something behind; None: the installed only.

    Raises:
        BadParameter: No such agent; an override of it would never speak.
    """
    from genesis_fp16.plugins.discovery import agent_entry_points

    if name is None or name in (names := set(agent_entry_points())):
        return name
    if store is not None:
        if store.runs(name, limit=1) or store.guard.history(name, limit=1):
            return name
        overrides = {override.agent for override in store.overrides.in_force() if override.agent}
        if name in overrides:
            return name
        names |= overrides | agents_of_runs(store) | set(store.guard.standing())
    close = difflib.get_close_matches(name[:_LONGEST], names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    known = "installed" if store is None else "known"
    raise typer.BadParameter(
        f"no agent is named {name[:_LONGEST]!r}; {meant}{known}: {', '.join(sorted(names))}"
    )
