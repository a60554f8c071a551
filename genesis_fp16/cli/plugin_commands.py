"""Commands of plugins: listed from metadata, imported when called."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from genesis_fp16.cli.output import JSON_OPTION, print_json
from genesis_fp16.plugins import entry_point_of
from genesis_fp16.plugins.commands import (
    CommandUnavailableError,
    PluginCommand,
    load_command,
    plugin_commands,
)
from genesis_fp16.plugins.loading import PluginRefusedError, plugin_code
from genesis_fp16.settings import load_settings
from genesis_fp16.system.signals import Signals
from infrastructure.agent_contract.command import CommandContext, InstalledAgent

_JSON_PARAMETER = "as_json"


class ProgramGroup(TyperGroup):
    """The program's commands and, after them, those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for ``--help``; a plugin's command cannot replace a built-in one."""
        own = super().list_commands(ctx)
        return own + sorted(self._of_plugins.keys() - set(own))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The built-in command of that name, else the plugin's, not imported yet; else None."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:
            return own
        found = self._of_plugins.get(cmd_name)
        return None if found is None else _PluginCommand(found)

    @functools.cached_property
    def _of_plugins(self) -> dict[str, PluginCommand]:
        return {each.point.name: each for each in plugin_commands(self.commands)}


class _PluginCommand(TyperCommand):
    """Stands for a plugin's command until it is called."""

    def __init__(self, found: PluginCommand) -> None:
        source = f"{found.point.distribution} {found.point.version}"
        problem = ", cannot be used: see genesis-fp16 doctor" if found.problem else ""
        super().__init__(name=found.point.name, short_help=f"Command of {source}{problem}.")
        self._found = found

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Import the plugin and let its command parse *args*."""
        command = _load(self._found)
        context = CommandContext(
            find_agent=_find_agent,
            as_json=False,
            print_json=print_json,
            defer_interrupts=_defer_interrupts,
        )
        return command.make_context(info_name, args, parent=parent, obj=context, **extra)


def _load(found: PluginCommand) -> Any:
    """Import the command and turn it into one of the command-line library."""
    loaded = load_command(found)
    try:
        with plugin_code("its parameters cannot be read"):
            return typer.main.get_command(_to_typer(loaded, found.point.name))
    except PluginRefusedError as error:
        remedy = f"upgrade or uninstall {found.point.distribution}"
        raise CommandUnavailableError(found.point, f"{error}; {remedy}") from error


def _to_typer(loaded: object, name: str) -> typer.Typer:
    if isinstance(loaded, typer.Typer):
        _give_context(loaded)
        return loaded
    if isinstance(loaded, type) or not callable(loaded):
        kind = "class" if isinstance(loaded, type) else type(loaded).__name__
        raise PluginRefusedError(f"its entry point is a {kind}, not a function or a typer.Typer")
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(_with_context(loaded))
    return app


def _give_context(app: typer.Typer) -> None:
    """Pass the `CommandContext` to every function of *app* that asks for it."""
    registered = [*app.registered_commands, app.registered_callback]
    for each in registered:
        if each is not None and each.callback is not None:
            each.callback = _with_context(each.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _give_context(group.typer_instance)


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* with its parameter of type `CommandContext` filled and an option ``--json``."""
    signature = inspect.signature(function, eval_str=True)
    own = dict(signature.parameters)
    name = next((name for name, each in own.items() if each.annotation is CommandContext), None)
    if name is None:
        return function
    given = own | {name: own[name].replace(annotation=typer.Context)}
    if _JSON_PARAMETER not in own:
        given[_JSON_PARAMETER] = inspect.Parameter(
            _JSON_PARAMETER,
            inspect.Parameter.KEYWORD_ONLY,
            default=False,
            annotation=Annotated[bool, JSON_OPTION],
        )

    @functools.wraps(function)
    def command(**arguments: Any) -> Any:
        context: typer.Context = arguments[name]
        as_json = context.obj.as_json or arguments[_JSON_PARAMETER]
        context.obj = replace(context.obj, as_json=as_json)
        if _JSON_PARAMETER not in own:
            del arguments[_JSON_PARAMETER]
        return function(**{**arguments, name: context.obj})

    command.__dict__["__signature__"] = signature.replace(parameters=list(given.values()))
    command.__annotations__ = {each.name: each.annotation for each in given.values()}
    return command


def _find_agent(name: str) -> InstalledAgent:
    settings = load_settings()
    home = settings.home.absolute()
    return InstalledAgent(
        name=name,
        entry_point=entry_point_of(name),
        folder=home / "agents" / name,
        not_writable=_not_writable(home),
        settings=settings.for_agent(name).settings,
    )


def _not_writable(home: Path) -> str:
    """Why a command must not write below *home*; it never creates it."""
    try:
        owner = home.stat().st_uid
    except FileNotFoundError:
        return f"GENESIS_HOME={home} does not exist yet; genesis-fp16 run creates it"
    except OSError as error:
        return f"GENESIS_HOME={home}: {error.strerror}"
    if owner != os.geteuid():  # its daemon could not read what this user writes
        return f"GENESIS_HOME={home} belongs to another user (id {owner})"
    return ""


@contextmanager
def _defer_interrupts() -> Iterator[Callable[[], bool]]:
    with Signals() as signals:
        yield lambda: signals.stop_count > 0
