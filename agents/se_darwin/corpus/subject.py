"""Subjects: functions with their source and a generator of inputs."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from warnings import catch_warnings

from agents.se_darwin.corpus.arithmetic import GENERATORS as ARITHMETIC
from agents.se_darwin.corpus.dates import GENERATORS as DATES
from agents.se_darwin.corpus.draws import Generator
from agents.se_darwin.corpus.encodings import GENERATORS as ENCODINGS
from agents.se_darwin.corpus.everyday import GENERATORS as EVERYDAY
from agents.se_darwin.corpus.parsing import GENERATORS as PARSING
from agents.se_darwin.corpus.paths import GENERATORS as PATHS
from agents.se_darwin.corpus.protocols import GENERATORS as PROTOCOLS
from agents.se_darwin.corpus.sequences import GENERATORS as SEQUENCES
from agents.se_darwin.corpus.texts import GENERATORS as TEXTS

_GENERATORS = SEQUENCES | TEXTS | PATHS | ARITHMETIC | DATES | ENCODINGS | PROTOCOLS | PARSING
_GENERATORS |= EVERYDAY
_EVERYDAY = "everyday"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """A pure function of the standard library, or one that was written for the corpus.

    Attributes:
        module: Dotted name of the module; ``everyday`` for functions written for the corpus.
        function: Name of the function in the module.
        source: Normalised source of the definition, without docstring, decorators, annotations.
        generate: Draws positional arguments; literals only.
    """

    module: str
    function: str
    source: str
    generate: Generator

    @property
    def name(self) -> str:
        """Full name, for example ``heapq.merge``; the group of its transitions."""
        return f"{self.module}.{self.function}"

    @property
    def library(self) -> str | None:
        """Standard-library module whose names the function uses; None if it uses none."""
        return None if self.module == _EVERYDAY else self.module

    @property
    def defined(self) -> frozenset[str]:
        """Names of that module."""
        if self.library is None:
            return frozenset()
        with catch_warnings(action="ignore", category=DeprecationWarning):  # of old modules
            return frozenset(dir(import_module(self.library)))


@cache
def load_subjects() -> tuple[Subject, ...]:
    """Return the subjects whose Python source this Python version contains, sorted by name."""
    subjects = []
    for location, generate in _GENERATORS.items():
        module, function = location.split(":")
        source = _find_source(module, function)
        if source is not None:
            subjects.append(
                Subject(module=module, function=function, source=source, generate=generate)
            )
    return tuple(sorted(subjects, key=lambda subject: subject.name))


def _find_source(module: str, function: str) -> str | None:
    tree = _parse_module(module)
    if tree is None:
        return None
    definitions = [node for node in _definitions(tree) if node.name == function]
    return _normalise(definitions[0]) if definitions else None


@cache
def _parse_module(module: str) -> ast.Module | None:
    folder = Path(sysconfig.get_path("stdlib"), *module.split("."))
    if module == _EVERYDAY:
        folder = Path(__file__).with_name(_EVERYDAY)
    for path in (folder.with_suffix(".py"), folder / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _definitions(node: ast.AST) -> Iterator[ast.FunctionDef]:
    """Yield functions at module level, including those inside ``if`` and ``try``."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef):
            yield child
        elif isinstance(child, ast.If | ast.Try | ast.ExceptHandler):
            yield from _definitions(child)


def _normalise(definition: ast.FunctionDef) -> str:
    definition.decorator_list = []
    for node in ast.walk(definition):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node, clean=False) is not None and len(node.body) > 1:
                del node.body[0]
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.unparse(definition)
