"""Sees what the sandbox refuses while a test runs, also if the program handles the error."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from .given_modules import PROJECT_FOLDER
from .refusal import is_usually_handled, refusal, refused_file


@contextmanager
def refusals() -> Iterator[dict[str, str]]:
    """Collect what is refused in the block to the program, its tests and their modules.

    What only a module of Python or of a package met and handled is not collected: it asks for files
    that it can do without.

    Yields:
        The name of the file that was asked for, by description; empty for anything else.
    """
    refused: dict[str, str] = {}

    def trace(frame: FrameType, event: str, value: Any) -> Any:  # noqa: ANN401 - settrace's own
        name = frame.f_code.co_filename
        if not name.startswith(("<", PROJECT_FOLDER)) or name.startswith("<frozen "):
            return None
        frame.f_trace_lines = False
        if event == "exception":
            error = value[1]
            why = refusal(error) if isinstance(error, OSError | RuntimeError) else ""
            if why and not is_usually_handled(why):
                refused.setdefault(why, refused_file(error))
        return trace

    sys.settrace(trace)
    try:
        yield refused
    finally:
        sys.settrace(None)
