"""The source of the settings: the file and the environment, merged.

A real environment variable outranks the file, but ``ENABLE_FP16_TRAINING`` is false if either
says false. The file is never turned into environment, so that a running daemon can apply a change
of it. A name with our prefix that is not a setting is ignored with a warning, and in silence if
Genesis reads it; one that resembles the flag is refused, since a misspelt rollback must not pass.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import PydanticBaseSettingsSource

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.redaction import visible
from genesis_fp16.settings.env_file import (
    ENV_FILE_VARIABLE,
    ENVIRONMENT,
    FALSE_TEXTS,
    ROLLBACK_FLAG,
    TRUE_TEXTS,
    Variable,
    find_assignments,
    is_ours,
    read_bounded,
    read_env_file,
    shown_name,
    with_our_prefix,
)
from genesis_fp16.settings.genesis_names import CLIENT_NAMES, GENESIS_NAMES
from genesis_fp16.settings.removed import REMOVED_SETTINGS, take_removed
from genesis_fp16.settings.rollback_memory import lost_rollbacks
from genesis_fp16.settings.settings import (
    AGENTS_PREFIX,
    DEFAULT_ENV_FILE,
    VARIABLES,
    AgentSettings,
    Settings,
    display,
    variable_name,
)

ATTACHED_VARIABLE = "GENESIS_ATTACHED_ENV_FILE"
LONGEST_SHOWN = 200  # characters of a wrong value
MOST_LISTED = 100  # problems in an error, whose text is logged and kept in the daemon's status
MOST_UNKNOWN = 50  # names that are compared with all settings: each takes a millisecond
MORE_UNKNOWN = "more"  # key of the warning that counts the further unknown names
DEEPEST = 16  # parts of a name, and levels of JSON
_AGENT_VARIABLE = re.compile(rf"{AGENTS_PREFIX}[A-Z0-9_]*?__[A-Z0-9_]*")
_AGENT_FIELDS = [field.upper() for field in AgentSettings.model_fields]
# In a wrong file, as the flag's value:
_OTHER_FALSE_TEXTS = ("disabled", "disable", "fp32")
_OTHER_TRUE_TEXTS = ("enabled", "enable", "fp16", "bf16", "half")
_NOT_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")


class SettingsError(GenesisError, ValueError):
    """Wrong settings; the message lists the first with name, value, source and remedy.

    Args:
        problems: What is wrong, a line for each.
        more: Number of further wrong settings.
        note: What was done about it.

    Attributes:
        problems: The first `MOST_LISTED` of them, and a line that counts the others.
    """

    exit_code = os.EX_CONFIG

    def __init__(self, problems: list[str], more: int = 0, note: str = "") -> None:
        total, left_out = len(problems) + more, more + len(problems[MOST_LISTED:])
        count = "1 setting is" if total == 1 else f"{total:,} settings are"
        self.problems = problems[:MOST_LISTED]
        if left_out:
            self.problems.append(f"{left_out:,} more are wrong; correct these first")
        notes = [note] if note else []
        super().__init__("\n  ".join([f"{count} wrong:", *self.problems, *notes]))
        self._given = problems, more

    def with_note(self, note: str) -> SettingsError:
        """The same error with another note."""
        return SettingsError(*self._given, note)


def load_settings(
    env_file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    only: Collection[str] | None = None,
    home: Path | None = None,
) -> Settings:
    """Read the settings from the file and the environment.

    A demand for FP32 that the home remembers, and that the settings no longer mention, is wrong.

    Args:
        env_file: The file, which may be missing; by default ``GENESIS_ENV_FILE``, which must not
            be missing, or ``.env``.
        environ: The environment; by default the process's own.
        only: Variables to read; all others keep their defaults and may be wrong. By default all.
        home: Home whose memory counts; by default the one that the settings name.

    Raises:
        SettingsError: Something is wrong; the message lists every problem.
    """
    environ = os.environ if environ is None else environ
    path = env_file or Path(environ.get(ENV_FILE_VARIABLE) or DEFAULT_ENV_FILE)
    with_flag = only is None or ROLLBACK_FLAG in only
    if only is not None and with_flag:
        only = {*only, variable_name("home")}
    source = FileAndEnvironment(path, environ, only)
    settings, more = None, 0
    try:
        settings = Settings(_build_sources=((source,), {}))
    except ValidationError as error:
        errors = error.errors()
        source.problems += [source.describe_error(details) for details in errors[:MOST_LISTED]]
        more = len(errors[MOST_LISTED:])
    else:
        settings.record_sources(source.variables, source.shadowed, source.texts)
        settings.record_ignored(source.removed, source.unknown)
        if with_flag:
            source.problems += lost_rollbacks(settings, home)
    problems = source.problems
    if only is not None:  # keeps misspelt names and unreadable lines that mention one of them
        names = [*only, f"{visible(str(path))} cannot be read"] if with_flag else only
        problems = [problem for problem in problems if any(name in problem for name in names)]
    if with_flag and env_file is None and path != DEFAULT_ENV_FILE and not path.exists():
        problems.append(
            f"{ENV_FILE_VARIABLE}={visible(str(path))} (environment): the file does not exist; "
            "correct the name, or create the file, with a comment in it if you want all defaults"
        )
    if problems or settings is None:
        raise SettingsError(problems, more)
    return settings


def read_demand_for_fp32(
    env_file: Path, environ: Mapping[str, str] | None = None
) -> Settings | None:
    """Settings with nothing but the rollback flag read, if that demands FP32; else None.

    A line that says so counts also if the rest of the file or the environment is wrong. Arguments
    as in `load_settings`.
    """
    environ = os.environ if environ is None else environ
    source = FileAndEnvironment(env_file, environ, (ROLLBACK_FLAG,))
    flag = source.variables.get(ROLLBACK_FLAG)
    if flag is None or flag.value.lower() not in FALSE_TEXTS:
        return None
    settings = Settings(_build_sources=((source,), {}))
    settings.record_sources(source.variables, source.shadowed, source.texts)
    return settings


def read_meant_demand_for_fp32(env_file: Path) -> Settings | None:
    """Settings with the rollback flag false if a line of a wrong file means that; else None.

    Such as ``enable_fp16_training=false``, ``ENABLE_FP16_TRAINING: off``, or any line of a file in
    UTF-16: a person who writes it wants FP32, and half precision must not go on meanwhile. Of a
    line that names the flag, all counts but what looks like true.
    """
    for name, variable in find_assignments(env_file):
        if not _means_fp32(name.upper(), variable.value.lower()):
            continue
        defaults = Settings(_build_sources=((), {}))
        settings = defaults.model_copy(update={VARIABLES[ROLLBACK_FLAG]: False})
        texts = {ROLLBACK_FLAG: {str(env_file.absolute()): "false"}}
        settings.record_sources({ROLLBACK_FLAG: variable}, (), texts)
        return settings
    return None


def _means_fp32(name: str, value: str) -> bool:
    """Whether *name* looks like the rollback flag, and *value* like false."""
    if name == ROLLBACK_FLAG:
        is_true = value in (*TRUE_TEXTS, *_OTHER_TRUE_TEXTS)
        is_true = is_true or bool(difflib.get_close_matches(value, ["true"], cutoff=0.75))
        return not is_true or value.startswith("un")
    if "DISABLE" in name:
        return _looks_like_flag(name) and value in TRUE_TEXTS
    is_false = value in (*FALSE_TEXTS, *_OTHER_FALSE_TEXTS)
    is_false = is_false or bool(difflib.get_close_matches(value, ["false"], cutoff=0.75))
    return is_false and _looks_like_flag(name)


def _looks_like_flag(name: str) -> bool:
    """Whether *name*, in capitals, resembles the rollback flag and does not exist."""
    return (
        not _is_known(name)
        and not name.startswith(AGENTS_PREFIX)
        and "FP16" in name
        and re.search("ABLE|TRAIN", name) is not None
    )


def attached_file(variables: Mapping[str, Variable]) -> Path | None:
    """The settings file of an attached Genesis, if *variables* name one."""
    text = variables[ATTACHED_VARIABLE].value if ATTACHED_VARIABLE in variables else ""
    if not text or _why_not_text(text):
        return None
    with suppress(RuntimeError):  # it names an unknown user, which is refused
        return Path(text).expanduser()
    return None


def _without_other_names(variables: dict[str, Variable]) -> dict[str, Variable]:
    others = GENESIS_NAMES | CLIENT_NAMES
    return {name: value for name, value in variables.items() if name not in others}


def _may_mean_flag(name: str) -> bool:
    """Whether the unknown *name*, in capitals, or the line that begins with it, means the flag."""
    return _resembles_flag(name) or not ("FP16" in name or is_ours(name, VARIABLES))


def _resembles_flag(name: str) -> bool:
    """Whether *name*, in capitals, is not a setting and may be meant as the rollback flag."""
    bare = name.removeprefix("GENESIS_")
    close = difflib.get_close_matches(bare, [ROLLBACK_FLAG], cutoff=0.85)
    return bool(close) or _looks_like_flag(name)


def _names_flag(name: str) -> bool:
    return name == ROLLBACK_FLAG or _resembles_flag(name)


def _asks_for_fp32(name: str, value: str) -> bool:
    """Whether a line of an attached file, whose *name* is like the flag's, demands FP32."""
    if "DISABLE" in name:
        return value.lower() not in FALSE_TEXTS
    return _means_fp32(ROLLBACK_FLAG, value.lower())


class FileAndEnvironment(PydanticBaseSettingsSource):
    """Merges the file and the environment, and records where each value stands.

    Arguments as in `load_settings`.

    Attributes:
        variables: Texts of the settings found, by name.
        shadowed: Names whose value in the file has no effect.
        texts: Texts of the settings by name and place, before they are merged.
        removed: Settings of earlier releases that are ignored, by name; see `take_removed`.
        unknown: Names with our prefix that are not settings, each with a warning.
        problems: What is wrong, a line for each.
    """

    def __init__(
        self, path: Path, environ: Mapping[str, str], only: Collection[str] | None = None
    ) -> None:
        super().__init__(Settings)
        self._path = path
        self.problems: list[str] = []
        in_file = _without_other_names(read_env_file(path, self.problems, VARIABLES))
        exported = {name: Variable(value, ENVIRONMENT) for name, value in environ.items()}
        in_environment = _without_other_names(
            {name: variable for name, variable in exported.items() if is_ours(name, VARIABLES)}
        )
        self.removed = take_removed(in_file, in_environment)
        merged = {**in_file, **in_environment}
        self.texts: dict[str, dict[str, str]] = {}
        for place, variables in ((str(path.absolute()), in_file), (ENVIRONMENT, in_environment)):
            for name, variable in variables.items():
                self.texts.setdefault(name, {})[place] = variable.value
        flag = in_file.get(ROLLBACK_FLAG)
        if flag is not None and flag.value.lower() not in TRUE_TEXTS:
            merged[ROLLBACK_FLAG] = flag  # false wins; a value that is not a truth value is refused
            other = in_environment.get(ROLLBACK_FLAG)
            if other is not None and other.value.lower() not in (*TRUE_TEXTS, *FALSE_TEXTS):
                value = display(ROLLBACK_FLAG, other.value)[:LONGEST_SHOWN]
                self.problems.append(
                    f"{ROLLBACK_FLAG}={value} ({ENVIRONMENT}): write true or false, or unset it"
                )
        in_both = {**merged}
        self._attached_warnings: dict[str, str] = {}
        self._take_attached_flag(merged)
        unknown = {name: merged.pop(name) for name in [*merged] if not _is_known(name)}
        self.unknown = self._describe_all_unknown(unknown) | self._attached_warnings
        self.variables: dict[str, Variable] = {}
        for name, variable in merged.items():
            if only is not None and name not in only:
                continue
            if why := _why_not_text(variable.value):
                self.problems.append(f"{shown_name(name)} ({variable.source}): {why}")
            else:
                self.variables[name] = variable
        self.shadowed = [
            name
            for name, variable in merged.items()
            if name in in_file and in_file[name].value != in_both[name].value
        ]

    def _take_attached_flag(self, merged: dict[str, Variable]) -> None:
        """Let the flag of an attached Genesis' own file count: false in either file wins.

        A name that resembles the flag is warned of, and demands FP32 unless it says true: who
        writes it during a rollback must not be left in half precision. Nothing else of that file
        counts, so nothing else of it is wrong.
        """
        path = attached_file(merged)
        if path is None:
            return
        try:
            read_bounded(path)
        except FileNotFoundError:
            return
        except OSError as error:
            why = error.strerror or str(error)
            self.problems.append(
                f"{ATTACHED_VARIABLE}={visible(str(path))}: cannot be read ({why}), so a rollback "
                "in it would not be seen; let this user read it, or run genesis-fp16 detach"
            )
            return
        named = [(name, v) for name, v in find_assignments(path) if _names_flag(name.upper())]
        lines = [variable for _, variable in named]
        rollback = next((v for name, v in named if _asks_for_fp32(name.upper(), v.value)), None)
        for name, variable in named:
            if name.upper() != ROLLBACK_FLAG:
                is_false = _asks_for_fp32(name.upper(), variable.value)
                taken = "taken for false, so all training is in FP32" if is_false else "ignored"
                self._attached_warnings[name] = f"{_describe_unknown(name, variable)} It is {taken}"
        if lines:
            text = "true" if rollback is None else "false"
            self.texts.setdefault(ROLLBACK_FLAG, {})[str(path.absolute())] = text
        ours = merged.get(ROLLBACK_FLAG)
        if rollback is not None and (ours is None or ours.value.lower() in TRUE_TEXTS):
            merged[ROLLBACK_FLAG] = Variable("false", rollback.source)

    def _describe_all_unknown(self, unknown: dict[str, Variable]) -> dict[str, str]:
        """Name to a warning; one that may mean the rollback flag is a problem instead."""
        misspelt = [name for name in unknown if _may_mean_flag(name.upper())]
        self.problems += [
            _describe_unknown(name, unknown.pop(name)) for name in misspelt[:MOST_UNKNOWN]
        ]
        described = list(unknown.items())[:MOST_UNKNOWN]
        warnings = {name: _describe_unknown(name, variable) for name, variable in described}
        if more := len(unknown) - len(described):
            warnings[MORE_UNKNOWN] = f"{more} more names are not settings; see .env.example"
        return warnings

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Text of *field_name* or None, the name again, and whether the library must decode it."""
        del field
        variable = self.variables.get(variable_name(field_name))
        return None if variable is None else variable.value, field_name, False

    def __call__(self) -> dict[str, Any]:
        """Values by field of `Settings`."""
        values: dict[str, Any] = {}
        for name, field in self.settings_cls.model_fields.items():
            value, key, _ = self.get_field_value(field, name)
            if value is not None:
                values[key] = value
        values["agents"] = self._read_agents()
        values["env_file"] = self._path
        return values

    def _read_agents(self) -> dict[str, Any]:
        """Values of the agents' variables, as a tree by the parts of their names."""
        tree: dict[str, Any] = {}
        for name, variable in self.variables.items():
            if not name.startswith(AGENTS_PREFIX):
                continue
            parts = name.split("__")
            if len(parts) > DEEPEST:
                what = f"{shown_name(name)} ({variable.source}): more than {DEEPEST} parts"
                self.problems.append(f"{what}; shorten it")
                continue
            beginnings = ("__".join(parts[:count]) for count in range(1, len(parts)))
            if whole := next(
                (beginning for beginning in beginnings if beginning in self.variables), None
            ):
                by = f"{shown_name(whole)} ({self.variables[whole].source})"
                what = f"set both whole, by {by}, and in parts"
                self.problems.append(f"{shown_name(name)} ({variable.source}): {what}; keep one")
                continue
            node = tree
            for part in parts[1:-1]:
                node = node.setdefault(part.lower(), {})
            try:
                node[parts[-1].lower()] = _parse_json(variable.value)
            except ValueError as error:
                self.problems.append(f"{shown_name(name)} ({variable.source}): {error}")
        return tree

    def describe_error(self, details: ErrorDetails) -> str:
        """One line for an error of validation: name, value unless secret, source, remedy."""
        field, *rest = (str(part) for part in details["loc"])
        name, message, remedy = variable_name(field), details["msg"], ""
        if field == "agents":
            name = AGENTS_PREFIX + "__".join(part for part in rest if part != "[key]").upper()
            if details["type"] == "extra_forbidden":
                message = f"an agent has only the settings {', '.join(_AGENT_FIELDS)}"
                if meant := _closest(rest[-1].upper(), _AGENT_FIELDS):
                    remedy = f"; did you mean {meant}?"
        elif details["type"] != "contradiction":
            default = display(name, Settings.model_fields[field].default)
            remedy = f"; the default is {name}={default}"
        sources = [
            variable.source
            for known, variable in self.variables.items()
            if known == name or known.startswith(f"{name}__")
        ]
        value = ""
        if _may_show(field, rest, details["input"]):
            value = display(name, details["input"])
            value = f"={value[:LONGEST_SHOWN]}{'...' if len(value) > LONGEST_SHOWN else ''}"
        message = visible(message.removeprefix("Value error, "))
        where = ", ".join(sources) or "default"
        return f"{shown_name(name)}{value} ({where}): {message}{remedy}"


def child_environment(more: Mapping[str, str]) -> dict[str, str]:
    """Environment of this process, and *more* variables, for a child with code of others.

    What opens the database or the control API is left out: agents need neither.
    """
    secret = {variable_name(field) for field in ("database_url", "api_token")}
    return {name: value for name, value in os.environ.items() if name not in secret} | dict(more)


def _may_show(field: str, rest: list[str], value: object) -> bool:
    """Whether an error may show the wrong *value*: where it stands tells that it is not secret."""
    if field == "agents":  # a wrong value of a known field, not an unknown one or SETTINGS
        known = len(rest) > 1 and rest[1] in AgentSettings.model_fields and rest[1] != "settings"
        return known and not isinstance(value, list | dict)
    return field not in ("database_url", "api_token", "shared_url")


def _is_known(name: str) -> bool:
    return name in VARIABLES or _AGENT_VARIABLE.fullmatch(name) is not None


def _describe_unknown(name: str, variable: Variable) -> str:
    name = shown_name(name)
    upper = with_our_prefix(name.upper(), VARIABLES) or name.upper()
    if upper.startswith(AGENTS_PREFIX):
        if upper.count("__") >= 2:  # complete, but in lower case
            meant = "" if upper.endswith("…") else upper
        else:
            *fields, last = _AGENT_FIELDS
            meant = f"{upper}__ followed by {', '.join(fields)} or {last}__<KEY>"
    elif _resembles_flag(upper):
        meant = ROLLBACK_FLAG
    else:
        meant = _closest(upper, [*VARIABLES, *REMOVED_SETTINGS])
    if (removed := REMOVED_SETTINGS.get(meant)) is not None:
        what = f"release {removed.release} removed {meant}"
        return f"{name} ({variable.source}): not a setting, and {what}; {removed.remedy}"
    remedy = f"did you mean {meant}?" if meant else "see .env.example for all settings"
    return f"{name} ({variable.source}): not a setting; {remedy}"


def _closest(name: str, known: Collection[str]) -> str:
    """The one of *known* that is most like *name*; empty if none is."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.6)), "")


def _why_not_text(text: str) -> str:
    """Why *text* cannot be the value of a setting; empty if it can."""
    if character := _NOT_TEXT.search(text):
        what = "a control character" if character[0].isascii() else "a byte that is not UTF-8"
        return f"contains {what} ({character[0]!a}); rewrite the value as UTF-8 text"
    return ""


def _parse_json(text: str) -> object:
    """The value of *text* if it is a JSON list or object; else *text*.

    Raises:
        ValueError: It is JSON that cannot be a setting.
    """
    if text[:1] not in ("[", "{"):
        return text
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(_too_deep()) from None
    except ValueError:
        return text  # the agent's own settings model validates it
    _check_json(value, DEEPEST)
    return value


def _check_json(value: object, levels: int) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"contains {value}; write a finite number")
    if isinstance(value, str) and (why := _why_not_text(value)):
        raise ValueError(why)
    if isinstance(value, list | dict):
        if levels == 0:
            raise ValueError(_too_deep())
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            _check_json(part, levels - 1)


def _too_deep() -> str:
    return f"is JSON nested deeper than {DEEPEST} levels; make it flatter"
