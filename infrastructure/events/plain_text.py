"""Makes text of plugins safe for a terminal, a log and a store."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import BeforeValidator

LONGEST = 2000
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_UNSAFE = {"Cc", "Cf", "Cs"}  # control, formatting (direction marks), surrogates


def plain(text: str, longest: int = LONGEST) -> str:
    """*text* without control characters (line ends and tabs stay), cut to *longest* characters."""
    if len(text) <= longest and text.isprintable():
        return text
    text = _ESCAPE_SEQUENCE.sub("", text[: 8 * longest])
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _UNSAFE)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _plain_if_text(value: object) -> object:
    return plain(value) if isinstance(value, str) else value


PlainText = Annotated[str, BeforeValidator(_plain_if_text)]
"""A string passed through `plain` when the worker writes it and when the daemon reads it."""
