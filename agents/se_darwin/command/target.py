"""Read ``FILE::FUNCTION`` or ``FILE``; refuse what cannot be repaired, with the reason."""

from __future__ import annotations

import ast
import difflib
import keyword
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.se_darwin.edits.edit_space import definition_of
from agents.se_darwin.edits.nodes import FunctionNode
from infrastructure.agent_contract.command import CommandError

BYTE_ORDER_MARK = "\ufeff"


@dataclass(frozen=True, kw_only=True, slots=True)
class RepairTarget:
    """A function to repair, and its file.

    Attributes:
        code: Text of the file with its own line ends.
        function: Name of the function, at the top level of the file, or ``Class.method``; empty if
            any function of the file may be repaired.
        program: The file under the name by which the tests import it; it may be a link.
        path: Path of the file in a diff, relative to *folder*.
        folder: Folder in which to apply the diff: the working folder if the file lies in it.
    """

    code: str
    function: str
    program: Path
    path: str
    folder: Path

    @classmethod
    def read(cls, target: str) -> RepairTarget:
        """Read the file that *target*, ``FILE::FUNCTION`` or ``FILE``, names.

        Raises:
            CommandError: It does not name a function that can be repaired; the message says why.
        """
        file, separator, function = target.partition("::")
        if not file or bool(separator) != bool(function):
            raise CommandError(
                f"{target!r} does not name a function: write FILE::FUNCTION, for example "
                "shop/prices.py::discount, or FILE for those that failing tests visit",
                os.EX_USAGE,
            )
        program = Path(file)
        code = read(program, "the program")
        if not program.stem.isidentifier() or keyword.iskeyword(program.stem):
            raise CommandError(
                f"{program} cannot be imported by its name, which its tests need: rename it to "
                f"{_importable(program.stem)}.py",
                os.EX_DATAERR,
            )
        if code.startswith(BYTE_ORDER_MARK):
            raise CommandError(
                f"{program} begins with a byte order mark, which makes a diff fail: save it as "
                "UTF-8 without one",
                os.EX_DATAERR,
            )
        tree = parse(code, program)
        if function:
            _check_function(tree, program, function)
        elif not any(_plain_functions(tree.body)):
            raise CommandError(
                f"{program} defines no function at its top level or in a class", os.EX_DATAERR
            )
        real, folder = program.resolve(), Path.cwd()
        if not real.is_relative_to(folder):
            folder = real.parent
        return cls(
            code=code,
            function=function,
            program=program,
            path=str(real.relative_to(folder)),
            folder=folder,
        )


def read(path: Path, what: str) -> str:
    """Text of a file.

    Raises:
        CommandError: It cannot be read.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        raise CommandError(f"{what}: the file {path} does not exist", os.EX_NOINPUT) from None
    except OSError as error:
        message = f"{what}: {path} cannot be read: {error.strerror}"
        raise CommandError(message, os.EX_NOINPUT) from None
    except UnicodeDecodeError:
        message = f"{what}: {path} cannot be read: save it as UTF-8"
        raise CommandError(message, os.EX_NOINPUT) from None


def _importable(name: str) -> str:
    """*name*, changed so that it can be imported."""
    name = re.sub(r"\W", "_", name)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"_{name}"


def parse(code: str, path: Path) -> ast.Module:
    """Syntax tree of *code*, which is that of the file *path*.

    Raises:
        CommandError: It is not Python.
    """
    try:
        return ast.parse(code)
    except SyntaxError as error:
        place = f":{error.lineno}" if error.lineno else ""  # a null byte has no line
        message = f"{path}{place} is not Python: {error.msg}"
    except ValueError as error:  # a null byte, in older versions
        message = f"{path} is not Python: {error}"
    except (RecursionError, MemoryError):  # the parser's own limits
        message = f"{path} is nested too deeply for the parser"
    raise CommandError(message, os.EX_DATAERR)


def _check_function(tree: ast.Module, program: Path, function: str) -> None:
    try:
        definition_of(tree, function)
    except ValueError:
        functions = list(_plain_functions(tree.body))
    else:
        return
    remedies = dict(_definitions(tree, ""))
    remedy = remedies.get(function)
    if remedy is None:  # named without its class, or misspelt
        inner = [name for name in remedies if name.rpartition(".")[2] == function]
        remedy = remedies[inner[0]] if inner else _nearest(function, functions)
    where = f"{program} has, at its top level and in classes,"
    message = f"{where} no function {function!r}; {remedy}"
    raise CommandError(message, os.EX_DATAERR)


def _plain_functions(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for node in body:
        if isinstance(node, FunctionNode):
            yield f"{prefix}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _plain_functions(node.body, f"{prefix}{node.name}.")


def _nearest(function: str, functions: list[str]) -> str:
    close = difflib.get_close_matches(function, functions, n=1)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are {', '.join(functions) or 'none'}"


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, str]]:
    """Every dotted name defined below *node*, and what to do if the user meant that one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Assign) and isinstance(child.value, ast.Lambda):
            for name in (target.id for target in child.targets if isinstance(target, ast.Name)):
                yield f"{prefix}{name}", f"{name} is a lambda: write it as `def {name}(...):`"
        elif isinstance(child, FunctionNode | ast.ClassDef):
            yield f"{prefix}{child.name}", _remedy(child, node, prefix)
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)


def _remedy(node: FunctionNode | ast.ClassDef, parent: ast.AST, prefix: str) -> str:
    name = f"{prefix}{node.name}"
    if isinstance(node, ast.ClassDef):
        return f"{name} is a class: name a function"
    if isinstance(parent, ast.ClassDef):
        return f"{name} is a method: name it with its class"
    if prefix:
        outer = prefix.partition(".")[0]
        return f"{name} is nested in {outer}: repair {outer}, or move {node.name} out of it"
    return f"{name} is nested in another statement: move it to the top level"
