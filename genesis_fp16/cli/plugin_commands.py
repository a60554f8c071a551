"""Commands of plugins: listed from metadata, imported when called."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand, TyperGroup

from genesis_fp16.cli.output import JSON_OPTION, print_json
from genesis_fp16.plugins import entry_point_of
from genesis_fp16.plugins.commands import (
    CommandUnavailableError,
    PluginCommand,
    load_command,
    plugin_commands,
    summarize_command,
)
from genesis_fp16.plugins.loading import PluginRefusedError, plugin_code
from genesis_fp16.settings import load_settings
from genesis_fp16.system.signals import Signals
from infrastructure.agent_contract.command import CommandContext, InstalledAgent
from infrastructure.events.plain_text import plain

_JSON_PARAMETER = "genesis_fp16_json"
_CONTEXT_KEY = "genesis_fp16.command_context"
_RUN_NOTHING_WHEN_CALLED = (
    inspect.iscoroutinefunction,
    inspect.isgeneratorfunction,
    inspect.isasyncgenfunction,
)
_LONGEST_HELP = 200  # characters
_LONGEST_TYPO = 100


class ProgramGroup(TyperGroup):
    """The program's commands and, after them, those of plugins."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names for ``--help``; a plugin's command cannot replace a built-in one."""
        built_in = super().list_commands(ctx)
        return built_in + sorted(self._of_plugins.keys() - set(built_in))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The built-in command of that name, else the plugin's, not imported yet; else None."""
        built_in = super().get_command(ctx, cmd_name)
        if built_in is not None:
            return built_in
        plugin_command = self._of_plugins.get(cmd_name)
        return None if plugin_command is None else _PluginCommand(plugin_command)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command that *args* name; a misspelt name is refused with the nearest one."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            names = self.list_commands(ctx)
            if close := difflib.get_close_matches(name[:_LONGEST_TYPO], names, n=1):
                ctx.fail(f"there is no command {name!r}; did you mean {close[0]}?")
        return super().resolve_command(ctx, args)

    @functools.cached_property
    def _of_plugins(self) -> dict[str, PluginCommand]:
        """Those whose names are valid; doctor names the others, too."""
        commands = plugin_commands(self.commands)
        return {command.point.name: command for command in commands if command.point.valid_name}


class _PluginCommand(TyperCommand):
    """Stands for a plugin's command until it is called."""

    def __init__(self, plugin_command: PluginCommand) -> None:
        super().__init__(name=plugin_command.point.name)
        self._plugin_command = plugin_command

    def get_short_help_str(self, limit: int = 45) -> str:
        """The line for ``--help``: the command's own, or which distribution it comes from."""
        point = self._plugin_command.point
        source = f"Command of {point.distribution} {point.version}"
        if self._plugin_command.problem:
            return f"{source}, cannot be used: see genesis-fp16 doctor."
        summary = plain(summarize_command(point), _LONGEST_HELP)
        return textwrap.shorten(summary, limit, placeholder="...") if summary else f"{source}."

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Import the plugin and let its command parse *args*."""
        command = _load(self._plugin_command)
        context = CommandContext(
            find_agent=_find_agent,
            as_json=False,
            print_json=print_json,
            defer_interrupts=_defer_interrupts,
        )
        parent.meta[_CONTEXT_KEY] = context  # shared by all contexts below; obj is the plugin's
        return command.make_context(info_name, args, parent=parent, **extra)


def _load(plugin_command: PluginCommand) -> Any:
    """Import the command and turn it into one of the command-line library."""
    loaded = load_command(plugin_command)
    try:
        with plugin_code("its parameters cannot be read"):
            command = typer.main.get_command(_to_typer(loaded, plugin_command.point.name))
            _check_json_is_free(command)
            return command
    except PluginRefusedError as error:
        remedy = f"upgrade or uninstall {plugin_command.point.distribution}"
        raise CommandUnavailableError(plugin_command.point, f"{error}; {remedy}") from error


def _to_typer(loaded: object, name: str) -> typer.Typer:
    if isinstance(loaded, typer.Typer):
        _give_context(loaded)
        return loaded
    if not (inspect.isfunction(loaded) or inspect.ismethod(loaded)):
        kind = "class" if isinstance(loaded, type) else type(loaded).__name__
        raise PluginRefusedError(
            f"its entry point must be a function or a typer.Typer, but its type is {kind}"
        )
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(name)(_with_context(loaded))
    return app


def _give_context(app: typer.Typer) -> None:
    """Pass the `CommandContext` to every function of *app* that asks for it."""
    registered = [*app.registered_commands, app.registered_callback]
    for info in registered:
        if info is not None and info.callback is not None:
            info.callback = _with_context(info.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _give_context(group.typer_instance)


def _with_context(function: Callable[..., Any]) -> Callable[..., Any]:
    """*function* with its parameter of type `CommandContext` filled and an option ``--json``."""
    signature = _signature(function)
    parameters = signature.parameters
    name = next(
        (name for name, parameter in parameters.items() if parameter.annotation is CommandContext),
        None,
    )
    if name is None:
        return function
    # The command-line library fills one parameter with its context; the wrapper fills the others.
    typer_contexts = [
        parameter.name for parameter in parameters.values() if _takes_typer_context(parameter)
    ]
    given = {
        parameter.name: parameter
        for parameter in parameters.values()
        if parameter.name not in typer_contexts
    }
    given[name] = parameters[name].replace(annotation=typer.Context)
    given[_JSON_PARAMETER] = inspect.Parameter(
        _JSON_PARAMETER,
        inspect.Parameter.KEYWORD_ONLY,
        default=False,
        annotation=Annotated[bool, JSON_OPTION],
    )

    @functools.wraps(function)
    def command(**arguments: Any) -> Any:
        context: typer.Context = arguments[name]
        offered: CommandContext = context.meta[_CONTEXT_KEY]
        offered = replace(offered, as_json=arguments.pop(_JSON_PARAMETER) or offered.as_json)
        context.meta[_CONTEXT_KEY] = offered  # a subcommand sees the --json of its group
        return function(**{**arguments, **dict.fromkeys(typer_contexts, context), name: offered})

    command.__dict__["__signature__"] = signature.replace(parameters=list(given.values()))
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in given.values()}
    return command


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Signature of *function*, which the program must be able to call by parameter names.

    Raises:
        PluginRefusedError: It cannot be called so; the message names the function and the cause.
    """
    called = f"{getattr(function, '__name__', type(function).__name__)}()"
    if any(check(function) for check in _RUN_NOTHING_WHEN_CALLED):
        raise PluginRefusedError(
            f"{called} is asynchronous or a generator, so a call would run nothing: write a plain "
            "function, which may call asyncio.run"
        )
    try:
        signature = inspect.signature(function, eval_str=True)
    except NameError as error:
        raise PluginRefusedError(
            f"an annotation of {called} cannot be read: {error}; import it at run time, not under "
            "TYPE_CHECKING alone"
        ) from error
    parameters = signature.parameters.values()
    for parameter in parameters:
        if parameter.kind not in {parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY}:
            raise PluginRefusedError(
                f"{called} takes {parameter}: each parameter must be one that can be passed by name"
            )
        if parameter.annotation is not CommandContext and _mentions_context(parameter.annotation):
            raise PluginRefusedError(
                f"the type of the parameter {parameter.name!r} of {called} must be CommandContext "
                "itself, not a type made from it"
            )
    contexts = [
        parameter.name for parameter in parameters if parameter.annotation is CommandContext
    ]
    if len(contexts) > 1:
        raise PluginRefusedError(
            f"{called} has several parameters of type CommandContext: keep one of "
            f"{', '.join(contexts)}"
        )
    return signature


def _takes_typer_context(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    return isinstance(kind, type) and issubclass(kind, typer.Context.__bases__)


def _mentions_context(annotation: object) -> bool:
    return annotation is CommandContext or any(map(_mentions_context, get_args(annotation)))


def _check_json_is_free(command: Any) -> None:
    """Refuse a parameter that takes the place of the program's ``--json``."""
    names = [parameter.name for parameter in command.params]
    if _JSON_PARAMETER in names:
        for parameter in command.params:
            options = {*parameter.opts, *parameter.secondary_opts}
            if parameter.name != _JSON_PARAMETER and (
                parameter.name in {"json", "as_json"} or "--json" in options
            ):
                raise PluginRefusedError(
                    f"its parameter {parameter.name!r} takes a name that genesis-fp16 uses: it "
                    "adds --json to a command with a CommandContext; delete the parameter and read "
                    "context.as_json, or rename it"
                )
    for subcommand in getattr(command, "commands", {}).values():
        _check_json_is_free(subcommand)


def _find_agent(name: str) -> InstalledAgent:
    settings = load_settings()
    home = settings.home.absolute()
    return InstalledAgent(
        name=name,
        entry_point=entry_point_of(name, home),
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
