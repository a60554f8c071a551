"""Tells whether a test itself ends the process or its run, with any version of the function."""

from __future__ import annotations

import ast
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any

from .given_modules import PROJECT_FOLDER

_HARMLESS = {signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}  # if not handled
_HIDDEN_FILES = (__file__, "<frozen _sitebuiltins>")  # of `exit` and `quit`
_SIMPLE = (ast.Expr, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Raise, ast.Return, ast.Delete)
_MAY_NOT_RUN = (ast.BoolOp, ast.IfExp, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LEAVES = ("skip", "skipTest", "SkipTest", "importorskip", "xfail")


class EndError(BaseException):
    """Raised where the program or its tests would end the process."""


@contextmanager
def raising_ends() -> Iterator[None]:
    """Raise `EndError` in the block where given code would end the process."""
    places: tuple[tuple[Any, str, Callable[..., bool]], ...] = (
        (os, "_exit", lambda *_, **__: True),
        (os, "abort", lambda *_: True),
        (os, "kill", lambda pid, number: pid in (0, os.getpid()) and _is_deadly(number)),
        (os, "killpg", lambda group, number: group in (0, os.getpgrp()) and _is_deadly(number)),
        (signal, "raise_signal", _is_deadly),
    )
    kept = [(module, name, getattr(module, name)) for module, name, _ in places]
    for module, name, ends in places:
        setattr(module, name, _raising(f"{module.__name__}.{name}", getattr(module, name), ends))
    try:
        yield
    finally:
        for module, name, call in kept:
            setattr(module, name, call)


def own_end(error: BaseException, sources: Mapping[str, str]) -> str:
    """How a test itself ended with *error*, in words; empty if the function may be the reason.

    It is not the reason if the tests raise something other than an `Exception`, or end the process,
    in a statement that runs in every run of theirs which does not fail before it.

    Args:
        error: What the test raised.
        sources: Sources of the tests' modules by file name.
    """
    if isinstance(error, Exception) or type(error).__module__.startswith("_pytest."):
        return ""
    frames = list(_frames(error.__traceback__))
    while frames and frames[-1][0].f_code.co_filename in _HIDDEN_FILES:
        frames.pop()
    if not frames or frames[-1][0].f_code.co_filename not in sources:
        return ""
    caller: ast.stmt | None = None
    is_inside = False
    for frame, line in frames:
        code = frame.f_code
        source = sources.get(code.co_filename)
        if source is None:
            if _is_given(code.co_filename):  # the program
                return ""
            caller = None
            continue
        if is_inside and not (caller and _calls(caller, code.co_name)):
            return ""  # called by something else, as often as that likes
        caller, is_inside = _statement_that_always_runs(source, code.co_firstlineno, line), True
        if caller is None:
            return ""
    does = f"ends the process with {error}" if isinstance(error, EndError) else ""
    return f"{does or f'raises {type(error).__name__}'} itself, with any version of the function"


def _is_given(file: str) -> bool:
    """Whether *file* is of the program or its tests, and no module of Python or of a package."""
    return file.startswith(("<", PROJECT_FOLDER)) and not file.startswith("<frozen ")


def _is_deadly(number: int) -> bool:
    if number in (signal.SIGKILL, signal.SIGSTOP):
        return True
    return number > 0 and signal.getsignal(number) == signal.SIG_DFL and number not in _HARMLESS


def _raising(name: str, call: Callable[..., Any], ends: Callable[..., bool]) -> Callable[..., Any]:
    """Return *call*, which raises if the program or its tests call it and it *ends* the process."""

    def raising(*args: Any, **named: Any) -> Any:  # noqa: ANN401 - as what it replaces
        caller = sys._getframe(1)
        if _is_given(caller.f_code.co_filename) and ends(*args, **named):
            raise EndError(name)
        return call(*args, **named)

    return raising


def _frames(trace: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while trace is not None:
        yield trace.tb_frame, trace.tb_lineno
        trace = trace.tb_next


def _statement_that_always_runs(source: str, first_line: int, line: int) -> ast.stmt | None:
    """The statement at *line* if each call of its function runs it, unless it fails before.

    None if that is not certain. *first_line* is that of the function, or of its first decorator.
    """
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    definitions = [
        function
        for function in functions
        if min([function.lineno, *(name.lineno for name in function.decorator_list)]) == first_line
    ]
    if not definitions:
        return None  # a lambda or a class
    body = definitions[0].body
    there = [
        statement
        for statement in body
        if statement.lineno <= line <= (statement.end_lineno or line)
    ]
    if len(there) != 1 or not isinstance(there[0], _SIMPLE):
        return None
    [statement] = there
    before = body[: body.index(statement)]
    if any(_may_leave(node) for statement in before for node in ast.walk(statement)):
        return None
    return None if any(map(_may_skip, ast.walk(statement))) else statement


def _may_skip(node: ast.AST) -> bool:
    """Whether a part of *node* may not run."""
    return isinstance(node, _MAY_NOT_RUN) or (isinstance(node, ast.Compare) and len(node.ops) > 1)


def _calls(statement: ast.stmt, name: str) -> bool:
    """Whether *statement* calls a function of that *name*."""
    called = (node.func for node in ast.walk(statement) if isinstance(node, ast.Call))
    return any(
        getattr(function, "attr", getattr(function, "id", "")) == name for function in called
    )


def _may_leave(node: ast.AST) -> bool:
    """Whether *node* may leave the test without failing it."""
    if isinstance(node, ast.Return):
        return True
    return getattr(node, "attr", getattr(node, "id", "")) in _LEAVES
