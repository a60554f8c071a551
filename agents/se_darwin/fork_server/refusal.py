"""Tells whether the sandbox, and not the program, made a test fail, and what it refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import PurePath

from .given_modules import PROJECT_FOLDER

_NO_FILES = (errno.EMFILE, errno.ENFILE)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS)
_FILE = "uses the file "
_SYSTEM_CALL = "makes a system call"
_REMEDY = (
    ": put what it contains in a module of the tests, write it to tmp_path, or give the function "
    "text"
)


class NotOfferedError(AttributeError):
    """A test uses something of pytest's that the sandbox does not offer."""


def refusal(error: BaseException, *, is_own: bool = False) -> str:
    """What the sandbox refused where *error* was raised, in words; empty if it refused nothing.

    *is_own*: Whether the function under repair raised it.
    """
    described = (_describe(cause, is_own=is_own) for cause in _chain(error))
    return next(filter(None, described), "")


def is_usually_handled(why: str) -> bool:
    """Whether programs go on as well without what was refused: a change of a file's mode or time.

    *why* is what `refusal` returned.
    """
    return why.startswith(_SYSTEM_CALL)


def refused_file(error: BaseException) -> str:
    """Name of the file that the sandbox refused where *error* was raised; empty for others."""
    for cause in _chain(error):
        if _describe(cause, is_own=False):
            name = getattr(cause, "filename", None)
            return os.fsdecode(name) if isinstance(name, str | bytes | PurePath) else ""
    return ""


def _describe(error: BaseException, *, is_own: bool) -> str:
    if isinstance(error, NotOfferedError):
        return f"uses {error}, which the sandbox does not offer"
    if isinstance(error, ModuleNotFoundError) and not is_own:
        return f"imports {error.name}, which is not installed in the environment of genesis-fp16"
    if isinstance(error, OSError):
        does = _describe_call(error)
    else:
        is_thread = isinstance(error, RuntimeError) and str(error) == "can't start new thread"
        does = "starts a thread" if is_thread else ""
    if not does:
        return ""
    return f"{does}, which the sandbox forbids{_REMEDY if does.startswith(_FILE) else ''}"


def _describe_call(error: OSError) -> str:
    """What the system refused with *error*; empty if the sandbox is not the reason."""
    is_path = isinstance(error.filename, str | bytes | PurePath)
    name = os.fsdecode(error.filename) if is_path else ""
    is_beside_tests = name.startswith(PROJECT_FOLDER) and error.errno == errno.ENOENT
    if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN:
        return "starts a process"
    if error.errno not in (*_NO_FILES, *_FORBIDDEN) and not is_beside_tests:
        return ""
    if name:
        return f"{_FILE}{name.removeprefix(PROJECT_FOLDER)}"
    if error.errno in _NO_FILES:
        return "opens a file, a pipe, a socket or an event loop"
    return _SYSTEM_CALL


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield *error*, and the errors which led to it."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__ or cause.__context__
