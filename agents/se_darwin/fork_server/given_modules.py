"""Import of modules whose sources are given by name: nothing can be read from files here."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

from .recompiling import Recompiler

PACKAGE = ".__init__"
"""Ends the name under which the source of a package is given."""


PROJECT_FOLDER = "/given/project/"
"""Begins ``__file__`` of the given modules: a folder that does not exist in the sandbox."""

_PROGRAMS = Recompiler()  # what a process screens are versions of one program


class GivenModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules whose sources are given, before any other that is not imported yet.

    Args:
        sources: Sources by dotted name; that of a package as ``package.__init__``.
        files: File names of candidates, for tracebacks and coverage, by name. Others are
            compiled under their ``__file__``.
        known: Names that every module has before it runs.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        files: Mapping[str, str] | None = None,
        known: Mapping[str, object] | None = None,
    ) -> None:
        self._sources, self._files, self._known = sources, files or {}, known or {}

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        """Find a given module, or a package of one."""
        del path, target
        is_package = any(source.startswith(f"{name}.") for source in self._sources)
        if name not in self._sources and not is_package:
            return None
        return importlib.util.spec_from_loader(name, self, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's source; that of a package without one is empty."""
        name = module.__name__
        source = self._sources.get(name, self._sources.get(f"{name}{PACKAGE}", ""))
        module.__file__ = file_name(name)  # tests may read it
        vars(module).update(self._known)
        if name in self._files:
            code = _PROGRAMS.compile(source, self._files[name])
        else:
            code = compile_module(source, module.__file__)
        exec(code, vars(module))  # noqa: S102 - in the sandbox


class MissingModules(importlib.abc.MetaPathFinder):
    """Finds nothing; notes which modules are asked for."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Note *name*."""
        del path, target
        self._names[name] = None

    @property
    def names(self) -> list[str]:
        """Modules that were asked for and are not there."""
        return [name for name in self._names if name not in sys.modules]


def file_name(name: str) -> str:
    """``__file__`` of the given module *name*."""
    return f"{PROJECT_FOLDER}{name}.py"


@lru_cache(maxsize=512)
def compile_module(source: str, file: str) -> CodeType:
    """Compile *source*; a process that is forked later has the result already."""
    return compile(source, file, "exec", dont_inherit=True)


def module_names(sources: Mapping[str, str]) -> list[str]:
    """Names of the modules whose *sources* are given."""
    return [name.removesuffix(PACKAGE) for name in sources]


def import_program(name: str, source: str, file: str, own_modules: Mapping[str, str]) -> ModuleType:
    """Import *source* as the module *name*; it may import its *own_modules*.

    They replace modules of the same names that this process has imported.
    """
    sources = {**own_modules, name: source}
    for module in module_names(sources):
        parts = module.split(".")
        for count in range(1, len(parts) + 1):
            sys.modules.pop(".".join(parts[:count]), None)
    sys.meta_path.insert(0, GivenModules(sources, {name: file}))
    return importlib.import_module(name)
