"""Compile a program that differs from an earlier one in one function: only that function.

A candidate is a whole module with one changed function. To compile a module of some hundred lines
takes longer than most tests.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from types import CodeType

LEAST_SAVED = 20
"""Number of lines outside of a function from which it pays to compile it alone."""

_FUTURE_FLAGS = reduce(
    or_, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_COMPARED = (
    *("co_name", "co_flags", "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars"),
    *("co_argcount", "co_kwonlyargcount", "co_posonlyargcount", "co_stacksize"),
    "co_exceptiontable",
)


class Recompiler:
    """Compiles modules, one after the other.

    Each does what it does when it is compiled as a whole; but line numbers of what follows the
    function that differs may be those of an earlier module.
    """

    def __init__(self) -> None:
        self._earlier: _Module | None = None

    def compile(self, source: str, file: str) -> CodeType:
        """Compile *source*; *file* is its name in tracebacks.

        Raises:
            SyntaxError: It is not Python.
            ValueError: It contains a null character.
        """
        earlier = self._earlier
        if earlier is not None and earlier.code.co_filename == file:
            code = earlier.code_of(source)
            if code is not None:
                return code
        code = compile(source, file, "exec", dont_inherit=True)
        if earlier is None or not earlier.is_used:
            self._earlier = _Module(source, code)
        return code


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a module or of its classes.

    Attributes:
        path: Names and first lines, from 1, of the classes around it, and its own.
        start: Its first line, from 0.
        stop: The line after its last one.
    """

    path: tuple[tuple[str, int], ...]
    start: int
    stop: int


class _Module:
    """A module that was compiled as a whole.

    Args:
        source: Its text.
        code: Its code.

    Attributes:
        code: Its code.
        is_used: Whether another module was compiled from it.
    """

    def __init__(self, source: str, code: CodeType) -> None:
        self.code, self.is_used = code, False
        self._source, self._lines = source, source.split("\n")
        self._functions: list[_Function] | None = None
        self._alone: dict[_Function, CodeType] = {}

    def code_of(self, source: str) -> CodeType | None:
        """Return the code of a module that differs in one function.

        None if it differs in more, or is so short that all of it is compiled as fast.
        """
        if len(self._lines) < LEAST_SAVED:
            return None
        if "\r" in source or "\r" in self._source:  # it ends a line, too
            return None
        try:
            if self._functions is None:
                self._functions = list(_functions(ast.parse(self._source).body))
            code = self._with_changes(source.split("\n"))
        except (SyntaxError, ValueError, RecursionError):  # to compile all of it tells why
            return None
        self.is_used = self.is_used or code is not None
        return code

    def _with_changes(self, new: Sequence[str]) -> CodeType | None:
        old, longer = self._lines, len(new) - len(self._lines)
        both = min(len(old), len(new))
        start = next((i for i in range(both) if old[i] != new[i]), both)
        both -= start
        end = next((i for i in range(both) if old[-1 - i] != new[-1 - i]), both)
        for function in self._functions or ():
            if function.start <= start and len(old) - end <= function.stop:
                if len(old) - function.stop + function.start < LEAST_SAVED:
                    return None
                if function not in self._alone:
                    old_lines = old[function.start : function.stop]
                    self._alone[function] = self._compile_alone(function, old_lines)
                now = self._compile_alone(function, new[function.start : function.stop + longer])
                return _combined(self.code, self._alone[function], now, function.path)
        return None

    def _compile_alone(self, function: _Function, lines: Sequence[str]) -> CodeType:
        """Compile *lines*, a version of *function*, in its classes, at its line in the module."""
        heads = [
            f"{4 * depth * ' '}class {name}:" for depth, (name, _) in enumerate(function.path[:-1])
        ]
        blank = [""] * (function.start - len(heads))
        flags = self.code.co_flags & _FUTURE_FLAGS
        text = "\n".join([*blank, *heads, *lines])
        code: CodeType = compile(text, self.code.co_filename, "exec", flags, dont_inherit=True)
        return code


def _functions(
    block: Sequence[ast.stmt], path: tuple[tuple[str, int], ...] = ()
) -> Iterator[_Function]:
    """Yield the functions in *block*, of a module or of a class with that *path*."""
    for node in block:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            node_path = (*path, (node.name, first))
            if isinstance(node, ast.ClassDef):
                yield from _functions(node.body, node_path)
            else:
                yield _Function(node_path, first - 1, node.end_lineno or node.lineno)


def _combined(
    whole: CodeType, before: CodeType, now: CodeType, path: Sequence[tuple[str, int]]
) -> CodeType | None:
    """Return *whole* with the function at *path* as it is in *now*.

    None if *now* and *before* differ in more than its body: in its decorators or defaults, or in
    what its class must prepare for it.
    """
    name, line = path[0]
    place, old, new = _find(whole, name, line), _find(before, name), _find(now, name)
    if place is None or old is None or new is None:
        return None
    if _outside(before, old[0]) != _outside(now, new[0]):
        return None
    code: CodeType | None = new[1]
    if len(path) > 1:
        code = _combined(place[1], old[1], new[1], path[1:])
    if code is None:
        return None
    consts = list(whole.co_consts)
    consts[place[0]] = code
    return whole.replace(co_consts=tuple(consts))


def _find(code: CodeType, name: str, line: int | None = None) -> tuple[int, CodeType] | None:
    """Return the only code of that *name* in *code*, at that *line* if given, and its position."""
    matches = [
        (position, constant)
        for position, constant in enumerate(code.co_consts)
        if isinstance(constant, CodeType) and constant.co_name == name
        if line in (None, constant.co_firstlineno)
    ]
    return matches[0] if len(matches) == 1 else None


def _outside(code: CodeType, position: int) -> list[object]:
    """Return what *code* does, apart from its constant at *position*."""
    consts = [repr(const) for const in code.co_consts]  # 1 and True are equal
    del consts[position]
    return [*(getattr(code, name) for name in _COMPARED), *consts]
