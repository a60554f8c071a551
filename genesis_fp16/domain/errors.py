"""The root of the daemon's errors; each layer derives its own."""

from __future__ import annotations


class GenesisError(Exception):
    """An error an operator can act on: its message says what, got and remedy.

    Attributes:
        exit_code: What the process exits with when the error ends it (sysexits.h).
    """

    exit_code = 1
