"""Reads the settings: the only reader of the environment and of ``.env``.

A real environment variable outranks the file, except that ``ENABLE_FP16_TRAINING`` is false if
either says false. The file is read here and never turned into environment, so that a change of
it can take effect in a running daemon.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings.env_file import (
    ENV_FILE_VARIABLE,
    ROLLBACK_FLAG,
    Variable,
    is_ours,
    read_env_file,
)
from genesis_fp16.settings.settings import (
    AGENTS_PREFIX,
    DEFAULT_ENV_FILE,
    VARIABLES,
    AgentSettings,
    Settings,
    shown,
    variable_name,
    written,
)
from genesis_fp16.settings.tree import tree_of, why_no_text

LONGEST_SHOWN = 200  # characters of a wrong value
MOST_UNKNOWN = 50  # whose likeness is looked up: each takes a millisecond
_AGENT_VARIABLE = re.compile(rf"{AGENTS_PREFIX}[A-Z0-9_]*?__[A-Z0-9_]*")
_TRUE = ("true", "1", "yes", "on", "t", "y")


class SettingsError(GenesisError, ValueError):
    """Wrong settings; the message lists each with name, value, source and remedy."""

    exit_code = os.EX_CONFIG

    def __init__(self, problems: list[str]) -> None:
        count = "1 setting is" if len(problems) == 1 else f"{len(problems)} settings are"
        super().__init__("\n  ".join([f"{count} wrong:", *problems]))
        self.problems = problems


def load_settings(
    env_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    only: Collection[str] = VARIABLES,
) -> Settings:
    """Read the settings from the environment and the file.

    Args:
        env_file: The file; by default ``GENESIS_ENV_FILE`` or ``.env``. It may be missing.
        environ: The environment; by default the process's own.
        only: Variables to read, not all; others keep their defaults, and may be wrong.

    Raises:
        SettingsError: Something is wrong; the message lists everything that is.
    """
    environ = os.environ if environ is None else environ
    path = env_file or Path(environ.get(ENV_FILE_VARIABLE) or DEFAULT_ENV_FILE)
    problems: list[str] = []
    from_file = read_env_file(path, problems)
    from_environment = {
        name: Variable(value, "environment") for name, value in environ.items() if is_ours(name)
    }
    merged = {**from_file, **from_environment}
    flag = from_file.get(ROLLBACK_FLAG)
    if flag is not None and flag.value.lower() not in _TRUE:
        merged[ROLLBACK_FLAG] = flag  # false outranks the environment; a wrong value is reported
    unknown = [item for item in merged.items() if not _is_known(item[0])]
    problems += [_unknown(*item) for item in unknown[:MOST_UNKNOWN]]
    if more := unknown[MOST_UNKNOWN:]:
        problems.append(f"{len(more)} further names are no settings: see .env.example")
    known = {k: v for k, v in merged.items() if _is_known(k)}
    if only is not VARIABLES:
        known = {name: found for name, found in known.items() if name in only}
        problems = [said for said in problems if any(name in said for name in only)]
    settings = _validate(known, problems)
    if problems or settings is None:
        raise SettingsError(problems)
    shadowed = [name for name, own in from_file.items() if merged[name].value != own.value]
    return settings.read_from(path, merged, shadowed)


def _validate(variables: Mapping[str, Variable], problems: list[str]) -> Settings | None:
    texts = {}
    for name, variable in variables.items():
        if why := why_no_text(variable.value):
            problems.append(f"{name} ({variable.source}): {why}")
        else:
            texts[name] = variable
    data: dict[str, object] = {VARIABLES[k]: v.value for k, v in texts.items() if k in VARIABLES}
    if agents := tree_of(texts, AGENTS_PREFIX, problems):
        data["agents"] = agents
    try:
        return Settings.model_validate(data)
    except ValidationError as error:
        problems += [_problem(details, variables) for details in error.errors()]
        return None


def _problem(details: ErrorDetails, variables: Mapping[str, Variable]) -> str:
    """One line: name, value, source, remedy."""
    field, *rest = (str(part) for part in details["loc"])
    name, remedy = variable_name(field), ""
    if field == "agents":
        name = AGENTS_PREFIX + "__".join(part for part in rest if part != "[key]").upper()
        if details["type"] == "extra_forbidden":
            remedy = f"; there are {', '.join(key.upper() for key in AgentSettings.model_fields)}"
    elif details["type"] != "contradiction":
        default = Settings.model_fields[field].default
        remedy = f"; the default is {name}={'' if default is None else written(default)}"
    found = [v.source for k, v in variables.items() if k == name or k.startswith(f"{name}__")]
    value = shown(name, details["input"])
    value = value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}..."
    message = details["msg"].removeprefix("Value error, ")
    return f"{name}={value} ({', '.join(found) or 'default'}): {message}{remedy}"


def _unknown(name: str, variable: Variable) -> str:
    upper = name.upper()
    if upper.startswith(AGENTS_PREFIX):
        *parts, last = (field.upper() for field in AgentSettings.model_fields)
        whole = upper.count("__") >= 2  # rightly so, but in lower case
        form = upper if whole else f"{upper}__ and {', '.join(parts)} or {last}__<KEY>"
        remedy = f"did you mean {form}?"
    else:
        switch = "FP16" in upper and re.search("ABLE|TRAIN", upper)
        close = difflib.get_close_matches(upper, VARIABLES, n=1, cutoff=0.6)
        found = ROLLBACK_FLAG if switch else next(iter(close), None)
        remedy = f"did you mean {found}?" if found else "see .env.example for all settings"
    return f"{name} ({variable.source}) is no setting: {remedy}"


def _is_known(name: str) -> bool:
    if name.startswith(AGENTS_PREFIX):
        return _AGENT_VARIABLE.fullmatch(name) is not None
    return name in VARIABLES
