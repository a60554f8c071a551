"""Checks of command-line arguments: text that can be stored, and names of agents."""

from __future__ import annotations

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
    from genesis_fp16.daemon.operator import UnknownNameError, check_agent

    if name is not None:
        try:
            check_agent(name, load_location().home.absolute(), store)
        except UnknownNameError as error:
            raise typer.BadParameter(str(error)) from error
    return name
