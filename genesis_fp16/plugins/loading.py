"""Loading of plugin code: in the probe, the worker, and for a plugin's own command."""

from __future__ import annotations

import importlib
import operator
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, JsonValue, ValidationError

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.redaction import shown
from genesis_fp16.plugins.installed_files import OF_ITS_OWN, changed_files, is_own
from genesis_fp16.system.own_distribution import AGENTS, LIBRARY, prefer_ours
from infrastructure.agent_contract import CONTRACT_VERSION, Agent
from infrastructure.agent_contract.agent import AGENT_NAME, MisconfiguredError
from infrastructure.events.plain_text import plain

AGENT_METHODS = ("schedule", "settings_model", "collect", "build_job", "publish")
_LONGEST_REASON = 400


class PluginRefusedError(GenesisError, ValueError):
    """A plugin cannot be used; the message is one line with the cause and the remedy."""

    exit_code = os.EX_CONFIG


@contextmanager
def plugin_code(doing: str) -> Iterator[None]:
    """Turn anything that plugin code raises into a `PluginRefusedError`, even ``sys.exit(0)``."""
    try:
        yield
    except PluginRefusedError:
        raise
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        raise PluginRefusedError(one_line(f"{doing}: {describe_error(error)}")) from error


def describe_error(error: BaseException) -> str:
    """Name *error*, its message, and the line of code that raised it."""
    if isinstance(error, SystemExit):
        what = f"called sys.exit({error.code!r})"
    else:
        what = (
            f"{type(error).__name__}: {error}" if str(error) else f"raised {type(error).__name__}"
        )
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return what
    return f"{what} ({Path(frames[-1].filename).name}:{frames[-1].lineno})"


def one_line(text: str) -> str:
    """*text* on one line of bounded length."""
    return plain(" ".join(text.split()), _LONGEST_REASON)


def load_object(target: str, root: Path | None = None) -> object:
    """Import the module of *target* and return its attribute.

    Args:
        target: ``module:attribute``.
        root: Folder below which the module must lie; None to accept any.

    Raises:
        PluginRefusedError: *target* is malformed, or cannot be imported, or the module comes from
            elsewhere.
    """
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute:
        raise PluginRefusedError(
            f"entry point {target!r} does not name an object: write 'module:attribute'"
        )
    if is_own(target):
        _prefer_own(module_name)
    with plugin_code(f"importing {module_name} failed"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise PluginRefusedError(_missing_module(error, module_name)) from error
    _check_origin(module, root)
    with plugin_code(f"{target} does not exist"):
        return operator.attrgetter(attribute)(module)


def load_agent(
    entry_point: str, name: str, root: Path | None = None, definition: Path | None = None
) -> Agent:
    """Import the plugin, create its agent and check it against the contract.

    Args:
        entry_point: ``module:attribute`` of a factory that takes no arguments, or, for a configured
            agent, the *definition*.
        name: Name of the entry point, which the agent must have too.
        root: Folder below which the module must lie; None to accept any.
        definition: File that describes a configured agent; None for an installed one.

    Raises:
        PluginRefusedError: The agent cannot be imported or created, or breaks the contract.
    """
    factory = load_object(entry_point, root)
    with plugin_code(f"creating the agent by {entry_point}() failed"):
        if not callable(factory):
            raise PluginRefusedError(f"{entry_point} is not callable: name a class or a function")
        try:
            made = factory() if definition is None else factory(definition)
        except MisconfiguredError as error:  # its message is for the operator
            raise PluginRefusedError(one_line(str(error))) from error
        return checked_agent(made, name)


def _prefer_own(module_name: str) -> None:
    """See to it that importing *module_name*, of our distribution, runs our code."""
    top = module_name.partition(".")[0]
    for path in (f"{module_name.replace('.', '/')}{end}" for end in (".py", "/__init__.py")):
        for changed in changed_files(path):
            what = "is missing" if changed.missing else "is not the file that was installed"
            by = f"; {changed.neighbour} has one of that name" if changed.neighbour else ""
            raise PluginRefusedError(f"{path} {what}{by}: {OF_ITS_OWN}")
    if top == AGENTS and top not in sys.modules:
        prefer_ours(AGENTS)


def _missing_module(error: ModuleNotFoundError, module_name: str) -> str:
    missing, top_level = error.name or str(error), module_name.partition(".")[0]
    owner = missing.partition(".")[0]
    if owner == LIBRARY != top_level:
        return (
            f"imports {missing!r}, which the library of genesis-fp16 does not have, and which "
            f"hides any other {LIBRARY!r}, such as Genesis': read what Genesis writes to files, or "
            "ask it in a process of its own"
        )
    if owner != top_level:
        return (
            f"needs the module {missing!r}, which is not installed: install it into the "
            "environment of genesis-fp16, or reinstall the plugin with its dependencies"
        )
    package = sys.modules.get(top_level)
    places = [path for path in getattr(package, "__path__", []) if Path(path).is_dir()]
    return (
        f"module {missing!r} cannot be found; {top_level!r} comes from "
        f"{', '.join(places) or 'nowhere'}: reinstall the plugin, and keep PYTHONPATH and other "
        "packages of that name out of the environment of genesis-fp16"
    )


def _check_origin(module: ModuleType, root: Path | None) -> None:
    origin = getattr(module, "__file__", None)
    if root is None or origin is None or Path(origin).resolve().is_relative_to(root.resolve()):
        return
    raise PluginRefusedError(
        f"module {module.__name__!r} is shadowed: expected below {root}, found {origin}; remove "
        "the other one, or unset PYTHONPATH"
    )


def checked_agent(agent: object, name: str) -> Agent:
    """Check the object that a factory returned against the contract, without calling it.

    Raises:
        PluginRefusedError: It is not an agent, or of another contract version or name.
    """
    version = getattr(agent, "contract_version", CONTRACT_VERSION)  # first: it decides the members
    if not isinstance(agent, type) and version != CONTRACT_VERSION:
        raise PluginRefusedError(
            f"written for agent contract {version!r}, this genesis-fp16 uses "
            f"{CONTRACT_VERSION}: upgrade the older of the two"
        )
    if isinstance(agent, type) or not isinstance(agent, Agent):
        members = ("name", "contract_version", *AGENT_METHODS)
        missing = [member for member in members if not hasattr(agent, member)]
        lacks = f"it lacks {', '.join(missing)}" if missing else "it is a class, not an instance"
        raise PluginRefusedError(
            f"the factory returned a {type(agent).__name__}, which is not an agent: {lacks}; "
            "derive from infrastructure.world_model_agent.WorldModelAgent"
        )
    if agent.name != name or not AGENT_NAME.fullmatch(name):
        raise PluginRefusedError(
            f"the agent is named {agent.name!r} and its entry point {name!r}: give both the same "
            f"name, which must match {AGENT_NAME.pattern}"
        )
    return agent


def validate_settings(agent: Agent, raw: Mapping[str, JsonValue]) -> BaseModel | None:
    """Validate the operator's settings by the agent's own model.

    Raises:
        PluginRefusedError: A setting or the model itself is wrong.
    """
    with plugin_code("settings_model() failed"):
        model = agent.settings_model()
    prefix = f"GENESIS_AGENTS__{agent.name.replace('-', '_').upper()}__SETTINGS__"
    if model is None:
        if raw:
            names = ", ".join(prefix + name.upper() for name in raw)
            raise PluginRefusedError(f"takes no settings of its own: delete {names}")
        return None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise PluginRefusedError(f"settings_model() returned {model!r}, not a pydantic model class")
    with plugin_code("validating the settings failed"):
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            keys = [key.upper() for key in model.model_fields]
            # from None: a traceback would print pydantic's message, which shows every value
            raise PluginRefusedError(one_line(_wrong_settings(error, prefix, keys))) from None


def _wrong_settings(error: ValidationError, prefix: str, keys: Iterable[str]) -> str:
    problems = []
    for details in error.errors():
        message = details["msg"].removeprefix("Value error, ")
        if not details["loc"]:  # of several settings: the message names them
            problems.append(message)
            continue
        name = "__".join(str(part) for part in details["loc"])
        hidden = details["type"] in ("missing", "extra_forbidden")  # of an unknown key: a typo
        got = "" if hidden else f"={shown(name, details['input'])}"
        known = ""
        if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
            known = f"; there are {', '.join(keys)}"
        problems.append(f"{prefix}{name.upper()}{got}: {message}{known}")
    return f"wrong settings: {'; '.join(problems)}"
