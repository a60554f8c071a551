"""The root of the daemon's errors; each layer derives its own."""

from __future__ import annotations


class GenesisError(Exception):
    """An error an operator can act on: its message says what was wrong, and the remedy.

    Attributes:
        exit_code: Exit code of a process that the error ends (sysexits.h).
    """

    exit_code = 1
