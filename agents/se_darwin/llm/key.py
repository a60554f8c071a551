"""The key of an endpoint, from a file or the environment; never printed."""

from __future__ import annotations

import os

from agents.se_darwin.llm.options import LLMOptions

NO_KEY = "none"
"""What a server without a key is sent."""


def read_key(options: LLMOptions) -> str:
    """Return the key.

    Raises:
        ValueError: It cannot be read, or is empty.
    """
    if options.key_file is not None:
        try:
            key = options.key_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"key_file {options.key_file} cannot be read: {error}") from None
        if not key or not key.isascii() or not key.isprintable():
            raise ValueError(f"key_file {options.key_file} does not contain a key in one line")
        return key
    if options.key_variable:
        key = os.environ.get(options.key_variable, "").strip()
        if not key:
            raise ValueError(f"the environment variable {options.key_variable} is not set")
        return key
    return NO_KEY
