"""Names the function of the tests in which a test failed, such as ``setup_module``."""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from contextlib import suppress

_LONGEST = 200  # characters of a message


def failure_place(error: BaseException, sources: Mapping[str, str]) -> str:
    """Return the name of the innermost function of the tests that raised *error*, and its message.

    Empty if none of their functions did. Lines are not given: the tests run in another layout.

    Args:
        error: What a test, or what is set up for it, raised.
        sources: Sources of the tests' modules by file name.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename in sources]
    if not names:
        return ""
    message = ""
    with suppress(Exception):  # a class of the tests may fail to write its own message
        message = str(error)[:_LONGEST]
    return f"{names[-1]}: {message}" if message else names[-1]
