"""Commands that plugins add to the program: the entry points of the group ``genesis.commands``."""

from __future__ import annotations

import ast
import os
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.plugins.discovery import (
    InstalledEntryPoint,
    check_not_shadowed,
    installed_entry_points,
    registration_error,
)
from genesis_fp16.plugins.loading import PluginRefusedError, load_object

COMMANDS_GROUP = "genesis.commands"


class CommandUnavailableError(GenesisError, RuntimeError):
    """A plugin's command cannot be used; names the distribution, the cause and the remedy."""

    exit_code = os.EX_CONFIG

    def __init__(self, point: InstalledEntryPoint, reason: str) -> None:
        super().__init__(
            f"command {point.name!r} of {point.distribution} {point.version} cannot be used: "
            f"{reason}"
        )


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command that an installed distribution declares.

    Attributes:
        problem: Why it cannot be used, as far as metadata shows; empty if nothing is wrong.
    """

    point: InstalledEntryPoint
    problem: str


def plugin_commands(built_in: Collection[str]) -> list[PluginCommand]:
    """Commands that plugins declare, sorted by name, read from metadata alone.

    The program's own commands, which win, are *built_in*.
    """
    points = installed_entry_points(COMMANDS_GROUP)
    return [PluginCommand(point, _problem(point, points, built_in)) for point in points]


def load_command(command: PluginCommand) -> object:
    """Import a command's code; return the object that its entry point names.

    Raises:
        CommandUnavailableError: The metadata is wrong, or importing the code failed.
        ShadowedPackageError: ``infrastructure.training`` is not the one installed with us.
        KeyboardInterrupt: The user interrupted the import.
    """
    if command.problem:
        raise CommandUnavailableError(command.point, command.problem)
    check_not_shadowed()
    try:
        return load_object(command.point.target, command.point.root)
    except PluginRefusedError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        remedy = f"upgrade or uninstall {command.point.distribution}"
        raise CommandUnavailableError(command.point, f"{error}; {remedy}") from error


def summarize_command(point: InstalledEntryPoint) -> str:
    """First line of the docstring of a command's function; empty if it has none.

    It is read from the source without importing it, because that would run the plugin's code.
    """
    module, _, function = point.target.partition(":")
    package, *inner = module.split(".")
    try:
        spec = find_spec(package)
        if spec is None:
            return ""
        folders = [
            Path(location).joinpath(*inner) for location in spec.submodule_search_locations or ()
        ]
        files = [folder.with_suffix(".py") for folder in folders] if inner else []
        files += [folder / "__init__.py" for folder in folders]
        if spec.origin is not None and not inner:
            files.append(Path(spec.origin))
        source = next((file for file in files if file.is_file()), None)
        nodes = [] if source is None else ast.parse(source.read_bytes()).body
    except (ImportError, OSError, SyntaxError, ValueError):
        return ""
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            return (ast.get_docstring(node) or "").partition("\n")[0]
    return ""


def _problem(
    point: InstalledEntryPoint, points: list[InstalledEntryPoint], built_in: Collection[str]
) -> str:
    remedy = f"upgrade or uninstall {point.distribution}"
    if point.name in built_in:
        return f"genesis-fp16 has a built-in command of this name, which is used instead; {remedy}"
    if error := registration_error(point, points, "command"):
        return error
    module, _, attribute = point.target.partition(":")
    if not module or not attribute:
        return f"its entry point {point.target!r} is not of the form 'module:attribute'; {remedy}"
    package = module.partition(".")[0]  # a search for a submodule would import the package
    if find_spec(package) is None:
        return f"its module {package!r} is not installed; reinstall {point.distribution}"
    return ""
