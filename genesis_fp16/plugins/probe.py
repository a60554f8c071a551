"""The child process that loads one plugin, or asks torch about the hardware, and answers in JSON.

The answer goes to a descriptor of its own: a plugin may print. The daemon never imports plugin
code; whatever a plugin does here (raise, exit, crash, hang) costs this process and no other.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.util
import json
import operator
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from genesis_fp16.domain.errors import GenesisError
from infrastructure.agent_contract import CONTRACT_VERSION, Agent, Schedule
from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events.plain_text import LONGEST, PlainText, plain

AGENT_METHODS = ("schedule", "settings_model", "collect", "build_job", "publish")
_SECRET_WORDS = ("secret", "token", "password", "key", "credential")
_LONGEST_REASON = 400


class ProbeAnswer(BaseModel):
    """What the probe found.

    Attributes:
        reason: One line; empty if the plugin is ready.
        detail: The traceback, where there is one.
        schedule: The agent's default.
        settings_schema: JSON schema of its settings; None if it takes none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    reason: PlainText = ""
    detail: PlainText = ""
    schedule: Schedule | None = None
    settings_schema: dict[str, JsonValue] | None = None


class ProbeRequest(BaseModel):
    """What the parent writes on the probe's stdin: settings may hold secrets, arguments may not.

    Attributes:
        root: Folder the plugin's distribution lies in; None if that is not known.
        settings: The operator's settings for the agent.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    root: Path | None = None
    settings: dict[str, JsonValue] = {}


class AgentRefusedError(GenesisError, ValueError):
    """An agent cannot be used; the message is one line with the cause and the remedy."""

    exit_code = os.EX_CONFIG


@contextmanager
def plugin_code(doing: str) -> Iterator[None]:
    """Turn whatever plugin code raises into an `AgentRefusedError`, even ``sys.exit(0)``."""
    try:
        yield
    except AgentRefusedError:
        raise
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        raise AgentRefusedError(one_line(f"{doing}: {describe_error(error)}")) from error


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


def load_agent(entry_point: str, name: str, root: Path | None = None) -> Agent:
    """Import the plugin, create its agent and hold it to the contract.

    Args:
        entry_point: ``module:attribute`` of a factory that takes no arguments.
        name: The entry point's name, which the agent must carry too.
        root: Folder the module must come from; None to accept any.

    Raises:
        AgentRefusedError: Anything at all was wrong with it.
    """
    module_name, _, attribute = entry_point.partition(":")
    if not module_name or not attribute:
        raise AgentRefusedError(
            f"entry point {entry_point!r} names no factory: write {name} = 'module:Class'"
        )
    with plugin_code(f"importing {module_name} failed"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            raise AgentRefusedError(_missing_module(error, module_name)) from error
    _check_origin(module, root)
    with plugin_code(f"{entry_point} does not exist"):
        factory = operator.attrgetter(attribute)(module)
    with plugin_code(f"creating the agent by {entry_point}() failed"):
        agent = factory()
        return checked_agent(agent, name)


def _missing_module(error: ModuleNotFoundError, module_name: str) -> str:
    missing, own = error.name or str(error), module_name.partition(".")[0]
    if missing.partition(".")[0] != own:
        return (
            f"needs the module {missing!r}, which is not installed: install it into the "
            "environment of genesis-fp16, or reinstall the plugin with its dependencies"
        )
    package = sys.modules.get(own)
    places = [path for path in getattr(package, "__path__", []) if Path(path).is_dir()]
    return (
        f"module {missing!r} cannot be found; {own!r} comes from "
        f"{', '.join(places) or 'nowhere'}: reinstall the plugin, and keep PYTHONPATH and other "
        "packages of that name out of the environment of genesis-fp16"
    )


def _check_origin(module: ModuleType, root: Path | None) -> None:
    found = getattr(module, "__file__", None)
    if root is None or found is None or Path(found).resolve().is_relative_to(root.resolve()):
        return
    raise AgentRefusedError(
        f"module {module.__name__!r} is shadowed: expected below {root}, found {found}; remove "
        "the other one, or unset PYTHONPATH"
    )


def checked_agent(agent: object, name: str) -> Agent:
    """Hold what a factory returned to the contract, as far as that shows without calling it.

    Raises:
        AgentRefusedError: It is no agent, of another contract, or of another name.
    """
    if isinstance(agent, type) or not isinstance(agent, Agent):
        members = ("name", "contract_version", *AGENT_METHODS)
        missing = [member for member in members if not hasattr(agent, member)]
        lacks = f"it lacks {', '.join(missing)}" if missing else "it is a class, not an instance"
        raise AgentRefusedError(
            f"the factory returned a {type(agent).__name__}, which is not an agent: {lacks}; "
            "derive from infrastructure.world_model_agent.WorldModelAgent"
        )
    if agent.contract_version != CONTRACT_VERSION:
        raise AgentRefusedError(
            f"written for agent contract {agent.contract_version!r}, this genesis-fp16 speaks "
            f"{CONTRACT_VERSION}: upgrade the older of the two"
        )
    if agent.name != name or not AGENT_NAME.fullmatch(name):
        raise AgentRefusedError(
            f"the agent calls itself {agent.name!r} and its entry point {name!r}: make both the "
            f"same name of the form {AGENT_NAME.pattern}"
        )
    return agent


def validate_settings(agent: Agent, raw: Mapping[str, JsonValue]) -> BaseModel | None:
    """Hold the operator's settings against the agent's own model.

    Raises:
        AgentRefusedError: A setting is wrong, or the agent's model is.
    """
    with plugin_code("settings_model() failed"):
        model = agent.settings_model()
    prefix = f"GENESIS_AGENTS__{agent.name.replace('-', '_').upper()}__SETTINGS__"
    if model is None:
        if raw:
            names = ", ".join(prefix + name.upper() for name in raw)
            raise AgentRefusedError(f"takes no settings of its own: delete {names}")
        return None
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise AgentRefusedError(f"settings_model() returned {model!r}, not a pydantic model class")
    with plugin_code("validating the settings failed"):
        try:
            return model.model_validate(raw)
        except ValidationError as error:
            keys = [key.upper() for key in model.model_fields]
            raise AgentRefusedError(one_line(_wrong_settings(error, prefix, keys))) from error


def _wrong_settings(error: ValidationError, prefix: str, keys: Iterable[str]) -> str:
    problems = []
    for details in error.errors():
        name = "__".join(str(part) for part in details["loc"])
        got = "" if details["type"] == "missing" or is_secret(name) else f"={details['input']}"
        known = ""
        if details["type"] == "extra_forbidden" and len(details["loc"]) == 1:
            known = f"; there are {', '.join(keys)}"
        problems.append(f"{prefix}{name.upper()}{got}: {details['msg']}{known}")
    return f"wrong settings: {'; '.join(problems)}"


def is_secret(name: str) -> bool:
    """Whether the value of an agent's setting of that name is to be kept out of sight."""
    return any(word in name.lower() for word in _SECRET_WORDS)


def probe_agent(entry_point: str, name: str, request: ProbeRequest) -> ProbeAnswer:
    """Load the agent, ask for its schedule and its settings; never raises."""
    try:
        agent = load_agent(entry_point, name, request.root)
        with plugin_code("schedule() failed"):
            schedule = agent.schedule()
        if not isinstance(schedule, Schedule):
            raise AgentRefusedError(f"schedule() returned {schedule!r}, not a Schedule")
        settings = validate_settings(agent, request.settings)
        with plugin_code("the JSON schema of the settings cannot be made"):
            schema = None if settings is None else type(settings).model_json_schema()
        return ProbeAnswer(schedule=schedule, settings_schema=schema)
    except AgentRefusedError as error:
        trace = "".join(traceback.format_exception(error))
        return ProbeAnswer(reason=one_line(str(error)), detail=trace[-LONGEST:])


def probe_hardware(device_name: str) -> dict[str, JsonValue]:
    """Import torch and ask what *device_name* is and computes."""
    import torch

    from infrastructure.training.precision.precision import hardware, resolve_device

    device = resolve_device(device_name)
    return {"device": str(device), "torch_version": torch.__version__, **hardware(device)}


def main() -> None:
    """Answer on the descriptor given; leave without waiting for threads a plugin started."""
    parser = argparse.ArgumentParser(
        prog="python -m genesis_fp16.plugins.probe", description=__doc__
    )
    parser.add_argument("entry_point", nargs="?", help="module:attribute of an agent's factory")
    parser.add_argument("--name", help="name of the entry point")
    parser.add_argument("--hardware", action="store_true", help="ask torch about the device")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--answer", type=int, default=1, help="descriptor to answer on")
    parser.add_argument("--deadline", type=float, default=30.0, help="seconds to live")
    options = parser.parse_args()
    # Ends this process with every thread's traceback even if the parent is gone.
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.deadline, exit=True)
    if options.hardware:
        try:
            answer = json.dumps(probe_hardware(options.device))
        except ValueError as error:  # no such device: the message says so and what to do
            sys.exit(f"{error}")
    elif options.entry_point and options.name:
        request = ProbeRequest.model_validate_json(sys.stdin.read() or "{}")
        found = probe_agent(options.entry_point, options.name, request)
        answer = found.model_dump_json()
    else:
        parser.error("give module:attribute with --name, or --hardware")
    with os.fdopen(options.answer, "w", closefd=False) as channel:
        channel.write(answer)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
