"""Read the program's own modules: those of its package, and files beside it that it imports."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import resolve_name
from pathlib import Path

from agents.se_darwin.command.target import BYTE_ORDER_MARK, parse, read
from agents.se_darwin.fork_server.given_modules import PACKAGE
from infrastructure.agent_contract.command import CommandError

MAX_MODULES = 300
"""A program of more modules is refused: each candidate imports them all."""

_DYNAMIC = ("import_module(", "__import__(")


@dataclass(kw_only=True, slots=True)
class ProgramFiles:
    """The file under repair and the modules of its own.

    Attributes:
        name: Dotted name of the program's module; of an ``__init__.py``, that of its package.
        file: Its file, without symbolic links.
        roots: Folders in which its modules are looked for, in this order.
        sources: Sources of its own modules by dotted name, that of a package as
            ``package.__init__``; the program is not among them.
    """

    name: str
    file: Path
    roots: list[Path]
    sources: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, program: Path, code: str) -> ProgramFiles:
        """Read what the file *program*, whose text is *code*, imports directly and indirectly.

        The module has the name of *program*, also if that is a link to a file of another name.
        A package is a folder with ``__init__.py``, or one that a relative import of *code* needs.

        Raises:
            CommandError: A file cannot be read, is not Python, or there are too many.
        """
        place, tree = program.parent.resolve() / program.name, ast.parse(code)
        is_package = place.name == "__init__.py"
        folder, parts = place.parent, list[str]() if is_package else [place.stem]
        levels = [node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        needed = max(levels, default=0)
        while folder.name and (
            (folder / "__init__.py").is_file() or len(parts) + is_package <= needed
        ):
            parts.insert(0, folder.name)
            folder = folder.parent
        working = Path.cwd()
        above = [parent for parent in place.parents if parent.is_relative_to(working)]
        roots = list(dict.fromkeys([folder, place.parent, *above]))
        files = cls(name=".".join(parts), file=place.resolve(), roots=roots)
        for count in range(1, len(parts)):
            files.include(".".join(parts[:count]))
        for name in _imports(tree, files.name, is_package=is_package):
            files.include(name)
        if any(word in text for text in (code, *files.sources.values()) for word in _DYNAMIC):
            files._include_package()
        return files

    def include(self, name: str) -> bool:
        """Add the module *name* and what it imports; return whether it is one of the program's own.

        Raises:
            CommandError: See `read`.
        """
        pending, is_own = [name], False
        while pending:
            module = pending.pop()
            file = self._file_of(module)
            if file is None:
                continue
            is_own |= module == name
            is_package = file.name == "__init__.py"
            key = f"{module}{PACKAGE}" if is_package else module
            if file == self.file or key in self.sources:
                continue
            if len(self.sources) >= MAX_MODULES:
                raise CommandError(
                    f"{self.file} imports more than {MAX_MODULES} modules of its own, too many for "
                    "a sandbox: move the function to a module that imports less",
                    os.EX_DATAERR,
                )
            source = read(file, "the program").removeprefix(BYTE_ORDER_MARK)
            self.sources[key] = source
            pending += _imports(parse(source, file), module, is_package=is_package)
        return is_own

    def _include_package(self) -> None:
        """Add all modules of the program's package: any of them may be imported by a text."""
        files = sorted((self.roots[0] / self.name.partition(".")[0]).rglob("*.py"))
        for file in files if len(files) <= MAX_MODULES else []:
            name = self.name_of(file)
            with suppress(CommandError):  # a template, for example: importing it would say so
                self.include(name or "")

    def name_of(self, file: Path) -> str | None:
        """Name under which the program imports *file*, if it lies in the program's package."""
        top = self.name.partition(".")[0]
        if not file.is_relative_to(self.roots[0] / top):
            return None
        parts = list(file.relative_to(self.roots[0]).with_suffix("").parts)
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def _file_of(self, name: str) -> Path | None:
        if name.partition(".")[0] in sys.stdlib_module_names:
            return None
        for root in self.roots:
            module = root.joinpath(*name.split("."))
            for path in (module / "__init__.py", module.with_name(f"{module.name}.py")):
                if path.is_file():
                    return path.resolve()
        return None


def _imports(tree: ast.Module, name: str, *, is_package: bool) -> Iterator[str]:
    """Absolute names that the module *name* may import, and the packages that contain them."""
    package = name if is_package else name.rpartition(".")[0]
    for node in ast.walk(tree):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            try:
                base = resolve_name(base, package) if node.level else base
            except ImportError:  # beyond the top package: importing it will say so
                continue
            imported = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for module in imported:
            parts = module.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))
