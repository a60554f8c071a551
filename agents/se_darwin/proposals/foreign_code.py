"""Parse code that somebody else wrote: nothing of it reaches the terminal."""

from __future__ import annotations

import ast
import threading
import warnings

_ONE_AT_A_TIME = threading.Lock()  # `catch_warnings` changes what all threads share


def parse_foreign(code: str) -> ast.Module | None:
    """Return the syntax tree of *code*, or None if it is not Python or too deep for the parser.

    The parser's warnings quote the code, so they are not shown.
    """
    with _ONE_AT_A_TIME, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
