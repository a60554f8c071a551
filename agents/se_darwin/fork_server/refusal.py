"""What a test needs and the sandbox does not allow, told from what the program does wrong."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import PurePath

_NO_FILES = (errno.EMFILE, errno.ENFILE)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)


class NotOfferedError(AttributeError):
    """A test uses something of pytest's that the sandbox does not offer."""


def refusal(error: BaseException, *, is_own: bool = False) -> str:
    """What the sandbox refused where *error* was raised, in words; empty if it refused nothing.

    *is_own*: Whether the function under repair raised it.
    """
    described = (_describe(each, is_own=is_own) for each in _chain(error))
    return next(filter(None, described), "")


def _describe(error: BaseException, *, is_own: bool) -> str:
    if isinstance(error, NotOfferedError):
        return f"uses {error}, which the sandbox does not offer"
    if isinstance(error, ModuleNotFoundError) and not is_own:
        return f"imports {error.name}, which is not installed in the environment of genesis-fp16"
    starts = ""
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":
        starts = "starts a thread"
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        starts = "starts a process"
    if not isinstance(error, OSError) or error.errno not in (*_NO_FILES, *_FORBIDDEN):
        return f"{starts}, which the sandbox forbids" if starts else ""
    if isinstance(error.filename, str | bytes | PurePath) and error.filename:
        return (
            f"uses the file {os.fsdecode(error.filename)}, which the sandbox cannot open: put what "
            "it contains in a module of the tests, write it to tmp_path, or give the function text"
        )
    opens = "opens a file, a pipe, a socket or an event loop"
    does = opens if error.errno in _NO_FILES else "makes a system call"
    return f"{does}, which the sandbox forbids"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, and the errors which led to it."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
