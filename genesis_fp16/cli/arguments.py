"""Checks of command-line arguments: text that can be stored, and names of agents."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.reason import ReasonMissingError, one_line
from infrastructure.events.plain_text import plain

if TYPE_CHECKING:
    from genesis_fp16.store import Store

_LONGEST = 80  # characters shown of a wrong argument
_RECENT_RUNS = 500


class NotUtf8Error(GenesisError, ValueError):
    """An argument of the command line is not UTF-8, so that the store could not keep it."""

    exit_code = 2


def check_utf8(arguments: Sequence[str]) -> None:
    """Refuse *arguments* with bytes that are not UTF-8.

    Raises:
        NotUtf8Error: The message names the argument.
    """
    for number, argument in enumerate(arguments, start=1):
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = plain(os.fsencode(argument).decode(errors="backslashreplace"), _LONGEST)
            raise NotUtf8Error(
                f"argument {number} is not UTF-8: '{shown}'; write it in UTF-8"
            ) from error


def check_reason(reason: str) -> str:
    """*reason* as `one_line` makes it.

    Raises:
        BadParameter: It is empty.
    """
    try:
        return one_line(reason)
    except ReasonMissingError as error:
        raise typer.BadParameter(str(error)) from error


def agents_of_runs(store: Store) -> set[str]:
    """Agents of the newest runs."""
    return {run.agent for run in store.runs(limit=_RECENT_RUNS)}


def check_agent_name(name: str | None, store: Store | None = None) -> str | None:
    """Return *name* if an agent of that name is installed or known to *store*.

    Args:
        name: None for all agents.
        store: Store in which an agent that is not installed may have left runs, decisions of the
            guard or an override; None to accept installed agents only.

    Raises:
        BadParameter: There is no such agent.
        SettingsError: Home or database are wrong.
    """
    from genesis_fp16.cli.settings import load_location
    from genesis_fp16.plugins import agent_entry_points

    if name is None:
        return None
    names = set(agent_entry_points(load_location().home.absolute()))
    if name in names:
        return name
    if store is not None:
        if store.runs(name, limit=1) or store.guard.history(name, limit=1):
            return name
        overrides = {override.agent for override in store.overrides.in_force() if override.agent}
        if name in overrides:
            return name
        names |= overrides | agents_of_runs(store) | set(store.guard.latest())
    close = difflib.get_close_matches(name[:_LONGEST], names, n=1)
    suggestion = f"did you mean {close[0]}? " if close else ""
    known = "installed" if store is None else "known"
    raise typer.BadParameter(
        f"no agent is named {name[:_LONGEST]!r}; {suggestion}{known}: {', '.join(sorted(names))}"
    )
