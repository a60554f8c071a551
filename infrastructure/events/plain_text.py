"""Text of plugins, made fit for a terminal, a log and a store: no control characters, an end."""

from __future__ import annotations

import re
import unicodedata
from typing import Annotated

from pydantic import BeforeValidator

LONGEST = 2000
_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_UNFIT = {"Cc", "Cf", "Cs"}  # control, formatting (direction marks), surrogates


def plain(text: str, longest: int = LONGEST) -> str:
    """*text* without control characters but line ends and tabs, of at most *longest* characters."""
    text = _ESCAPE_SEQUENCE.sub("", text[: 8 * longest])
    text = "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in _UNFIT)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _plain_if_text(value: object) -> object:
    return plain(value) if isinstance(value, str) else value


PlainText = Annotated[str, BeforeValidator(_plain_if_text)]
"""A string that is `plain` whoever made it: the worker when it writes, the daemon when it reads."""
