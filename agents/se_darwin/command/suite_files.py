"""Read the caller's test module, its conftest files, and the modules that these import."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path

from agents.se_darwin.command.program_files import ProgramFiles
from agents.se_darwin.command.target import BYTE_ORDER_MARK, parse, read
from agents.se_darwin.sandbox.pytest_suite import HERE
from infrastructure.agent_contract.command import CommandError

_RELATIVE = re.compile(rb"from\s*(?:\.\s*)+(?:(?!import\b)[\w.]+\s*)?")
_IMPORTED_BEFORE = frozenset((
    "abc", "argparse", "array", "ast", "atexit", "base64", "bdb", "binascii", "bisect", "builtins",
    "bz2", "calendar", "cmd", "code", "codecs", "codeop", "collections", "contextlib", "copy",
    "copyreg", "csv", "dataclasses", "datetime", "decimal", "difflib", "dis", "email", "encodings",
    "enum", "errno", "faulthandler", "fcntl", "fnmatch", "functools", "gc", "genericpath",
    "gettext", "glob", "hashlib", "heapq", "html", "importlib", "inspect", "io", "ipaddress",
    "itertools", "json", "keyword", "linecache", "locale", "logging", "lzma", "marshal", "math",
    "ntpath", "numbers", "opcode", "operator", "os", "pathlib", "pdb", "platform", "posix",
    "posixpath", "pprint", "pyexpat", "quopri", "random", "re", "readline", "reprlib", "select",
    "selectors", "shlex", "shutil", "signal", "site", "socket", "stat", "string", "struct",
    "subprocess", "sys", "tempfile", "textwrap", "threading", "time", "token", "tokenize",
    "traceback", "types", "typing", "unicodedata", "unittest", "urllib", "uuid", "warnings",
    "weakref", "xml", "zipfile", "zipimport", "zlib",
))  # fmt: skip
"""Modules of Python that pytest imports before it reads a test: a file beside the tests never
replaces them, as it does any other module."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteFiles:
    """Texts of the test files.

    Attributes:
        code: The test module.
        path: Path of the test module, from the working folder if it lies in it.
        conftests: Files ``conftest.py`` beside it and in the folders above, the farthest first.
        helpers: Modules beside it, or in the folders above, that it or a conftest file imports.
        aliases: Names by which they import modules of the program's own, with their real names.
    """

    code: str
    path: str
    conftests: list[str] = field(default_factory=list)
    helpers: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, program: ProgramFiles) -> SuiteFiles:
        """Read the test module *path*, and what belongs to it up to the working folder.

        Args:
            path: The test module.
            program: Files of the program; those of its own modules that the tests import are added.

        Raises:
            CommandError: A file cannot be read or is not Python, or the test module is empty.
        """
        folders = _folders(path)
        files = cls(code=_python(path, "the tests"), path=_within_working_folder(path))
        trees = [ast.parse(files.code)]
        if not trees[0].body:
            raise CommandError(
                f"{path} contains no tests: write functions `def test_...():` with plain asserts",
                os.EX_DATAERR,
            )
        for folder in reversed(folders):
            if (conftest := folder / "conftest.py").is_file():
                files.conftests.append(_python(conftest, "the tests"))
                trees.append(ast.parse(files.conftests[-1]))
        while trees:
            for name in _imports(trees.pop()):
                helper = _file_of(name, folders)
                if name in {*files.helpers, *program.sources} or helper == program.file:
                    continue
                module = program.name_of(helper) if helper else name
                if module is not None and program.include(module):
                    files.aliases.update({name: module} if name != module else {})
                elif helper is not None:
                    files.helpers[name] = _python(helper, "the tests")
                    trees.append(ast.parse(files.helpers[name]))
        return files


def _python(path: Path, what: str) -> str:
    """Source of *path*; if its folder is a package, its relative imports name the whole package."""
    code = read(path, what).removeprefix(BYTE_ORDER_MARK)
    tree, package = parse(code, path), _package_of(path)
    lines = code.encode().splitlines(keepends=True)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level and package:
            with suppress(ImportError):  # beyond the top package: importing it will say so
                name = resolve_name("." * node.level + (node.module or ""), package)
                line, start = lines[node.lineno - 1], node.col_offset
                rest = _RELATIVE.sub(b"from %s " % name.encode(), line[start:], count=1)
                lines[node.lineno - 1] = line[:start] + rest
    return b"".join(lines).decode()


def _package_of(path: Path) -> str:
    """Dotted name of the package that contains the module *path*; empty if none does."""
    folder, parts = path.resolve().parent, list[str]()
    while folder.name and (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def _folders(path: Path) -> list[Path]:
    """Folder of the test module, and those above up to the working folder, if it lies in it."""
    folder, working = path.resolve().parent, Path.cwd()
    if not folder.is_relative_to(working):
        return [folder]
    return [folder, *(parent for parent in folder.parents if parent.is_relative_to(working))]


def _within_working_folder(path: Path) -> str:
    """*path* from the working folder; the file's name alone if it lies elsewhere."""
    real, working = path.resolve(), Path.cwd()
    return str(real.relative_to(working)) if real.is_relative_to(working) else path.name


def _imports(tree: ast.Module) -> Iterator[str]:
    """Names of modules that *tree* may import; a relative one is that of a module beside it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from [node.module] if node.module else []
            prefix = f"{node.module}." if node.module else f"{HERE}."
            yield from (f"{prefix}{alias.name}" for alias in node.names)


def _file_of(name: str, folders: list[Path]) -> Path | None:
    """File of the module *name*; None also for one of `_IMPORTED_BEFORE`, even if one lies here."""
    if name.partition(".")[0] in _IMPORTED_BEFORE:
        return None
    parts = name.removeprefix(f"{HERE}.").split(".")
    for folder in folders:
        module = folder.joinpath(*parts)
        for path in (module.with_name(f"{module.name}.py"), module / "__init__.py"):
            if path.is_file():
                return path.resolve()
    return None
