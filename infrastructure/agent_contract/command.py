"""What a plugin's own command of ``genesis-fp16`` receives, and how it refuses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue


class CommandError(RuntimeError):
    """A command cannot go on; the user sees the message on one line of stderr, no traceback.

    Args:
        message: What happened, and what to do.
        exit_code: Exit code of the program; see sysexits.h. Outside 1 to 255, 1 takes its place.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code if exit_code in range(1, 256) else 1


@dataclass(frozen=True, kw_only=True, slots=True)
class InstalledAgent:
    """An installed agent and its place on this machine.

    Attributes:
        name: Name of its entry point.
        entry_point: ``module:attribute`` of its factory.
        folder: Folder that persists across its runs; it may not exist yet.
        not_writable: Why a command must not write into *folder*, in one line; empty if it may.
        settings: The operator's settings for the agent, as written: validate them by the
            agent's model.
    """

    name: str
    entry_point: str
    folder: Path
    not_writable: str
    settings: Mapping[str, JsonValue]


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandContext:
    """What the program offers a command.

    Attributes:
        find_agent: Looks up an installed agent by name; raises `LookupError` if there is none.
        as_json: Whether to answer in JSON (``--json``), by `print_json` alone.
        print_json: Prints a value as JSON on stdout; NaN and infinities become text.
        defer_interrupts: Context manager that gives a function: whether SIGINT or SIGTERM has
            arrived since it was entered. Until it is left, neither ends the program. Outside it,
            Ctrl-C raises `KeyboardInterrupt` as usual.
    """

    find_agent: Callable[[str], InstalledAgent]
    as_json: bool
    print_json: Callable[[object], None]
    defer_interrupts: Callable[[], AbstractContextManager[Callable[[], bool]]]
