"""The TOML file that describes an agent without code: source of its records, fields, schedule."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from infrastructure.agent_contract import Schedule
from infrastructure.agent_contract.agent import MisconfiguredError
from infrastructure.agent_contract.transition import (
    MAX_HISTORY,
    MAX_ROLLOUT_STEPS,
    Box,
    Discrete,
    FieldType,
    Text,
    TransitionSpec,
)
from infrastructure.files import open_regular
from infrastructure.trajectories.record_source.formats import GENESIS_SPECS, RecordFormat

MAX_BYTES = 1 << 18
"""Maximum size of a definition."""

_SCHEMES = {"redis": ("redis", "rediss"), "mongodb": ("mongodb", "mongodb+srv")}
SERVER_KEYS = ("url", "password_file", "stream", "database", "collection")
"""Keys of a source that is a server."""

_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([\w.-]+))\s*=""")
_TABLE = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_SECRET = re.compile(r"[?&;][^=&;]*(?:password|token)[^&;]*[=:]", re.IGNORECASE)
_QUOTED = re.compile(r"""["']""")
_WITHOUT_STEPS = ("records", "casebank")
"""Formats in which no record is the successor of another."""


class DefinitionError(MisconfiguredError):
    """An agent's definition cannot be used; the message names the file, the line and the remedy."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class BoxField(_Table):
    """Real numbers; see `Box`."""

    type: Literal["box"]
    shape: tuple[int, ...] = ()
    delta: bool = False


class DiscreteField(_Table):
    """One of a fixed set of labels; see `Discrete`."""

    type: Literal["discrete"]
    values: tuple[str, ...]


class TextField(_Table):
    """Text that is embedded by hashing; see `Text`."""

    type: Literal["text"]
    buckets: int = Text().buckets


FieldTable: TypeAlias = Annotated[BoxField | DiscreteField | TextField, Field(discriminator="type")]


class SpecTable(_Table):
    """Fields of the agent's transitions; see `TransitionSpec`."""

    observation: dict[str, FieldTable]
    action: dict[str, FieldTable] = {}
    targets: dict[str, FieldTable]
    success: tuple[str, str] | None = None
    improvement: str | None = None
    history: int = Field(1, ge=1, le=MAX_HISTORY)
    rollout_steps: int = Field(0, ge=0, le=MAX_ROLLOUT_STEPS)
    split: Literal["group", "time"] = "group"

    @model_validator(mode="after")
    def _check_rollouts(self) -> SpecTable:
        for name, field in self.observation.items() if self.rollout_steps else ():
            target = self.targets.get(name)
            if field.type == "text":
                raise ValueError(
                    f"rollout_steps: a rollout cannot continue observation {name!r}, a text; "
                    "remove rollout_steps"
                )
            if target is None or not _is_same(field, target):
                raise ValueError(
                    f"rollout_steps: nothing predicts observation {name!r}, so a rollout cannot "
                    f"continue it; add the field to [spec.targets] with the same type, or remove "
                    f"rollout_steps"
                )
        return self

    def to_spec(self) -> TransitionSpec:
        """Return the specification.

        Raises:
            ValueError: The fields do not make a specification; the message says why.
        """
        return TransitionSpec(
            observation=_field_types(self.observation),
            action=_field_types(self.action),
            targets=_field_types(self.targets),
            success=self.success,
            improvement=self.improvement,
            history=self.history,
            rollout_steps=self.rollout_steps,
            split=self.split,
        )


class SourceTable(_Table):
    """Where the agent's records come from.

    Attributes:
        kind: ``folder`` for files that are read as they grow; ``buffer`` if another program appends
            to the agent's replay buffer itself; ``redis`` or ``mongodb`` for the stream or the
            collection of Genesis' replay buffer.
        url: Server of Redis or MongoDB, without a password.
        password_file: File with its password; relative to the home of the daemon.
        stream: Stream of Redis.
        database, collection: Collection of MongoDB.
        path: Folder of the files; relative to the home of the daemon.
        pattern: Names of the files, with ``*`` and ``?``; rotated files (``x.jsonl.1``,
            ``x.jsonl-20261122.gz``) are read, too.
        format: Form of the records.
        agents: Names that mark a record as the agent's own, if the record names an agent, with
            ``*`` and ``?`` as in ``spec_*``; empty for the agent's own name with ``transitions``
            and ``records``, any with Genesis' own.
        group, id, reward, terminated, agent: Keys of a record in the format ``records``, as
            ``episode`` or ``task.name``; empty if there is no such key.
    """

    kind: Literal["folder", "buffer", "redis", "mongodb"] = "folder"
    url: str = ""
    password_file: Path | None = None
    stream: str = "agent_trajectories"
    database: str = "genesis_replay_buffer"
    collection: str = "trajectories"
    path: Path | None = None
    pattern: str = ""
    format: RecordFormat = "transitions"
    agents: tuple[str, ...] = ()
    group: str = ""
    id: str = ""
    reward: str = ""
    terminated: str = ""
    agent: str = ""

    @model_validator(mode="after")
    def _check(self) -> SourceTable:
        if (self.path is None) == (self.kind == "folder"):
            wanted = "needs a path" if self.kind == "folder" else "takes no path"
            raise ValueError(f"a source of kind {self.kind!r} {wanted}")
        self._check_server()
        names = ("group", "id", "reward", "terminated", "agent")
        keys = [name for name in names if getattr(self, name)]
        if self.format == "records":
            if not self.group:
                raise ValueError(
                    "the format 'records' needs group: the key of the episode, task or "
                    "conversation to which a record belongs"
                )
        elif keys:
            raise ValueError(f"{', '.join(keys)}: only the format 'records' takes keys")
        if "/" in self.pattern:
            raise ValueError(f"pattern is the name of files, not a path, got {self.pattern!r}")
        return self

    def _check_server(self) -> None:
        kind, schemes = f"a source of kind {self.kind!r}", _SCHEMES.get(self.kind)
        if schemes is None:
            fields = type(self).model_fields
            wrong = [key for key in SERVER_KEYS if getattr(self, key) != fields[key].default]
            if wrong:
                raise ValueError(f"{kind} takes no {', '.join(wrong)}")
            return
        parts = urlsplit(self.url)
        if parts.scheme not in schemes or not parts.netloc:
            raise ValueError(f"{kind} needs url, such as '{schemes[0]}://localhost'")
        if _holds_secret(self.url):
            raise ValueError("url holds a password: write it to a file, and set password_file")
        if self.format == "trajectory-pool":
            raise ValueError(f"{kind} takes no format 'trajectory-pool'")

    @property
    def file_pattern(self) -> str:
        """`pattern`, or that of the format."""
        return self.pattern or usual_pattern(self.format)


def _holds_secret(url: str) -> bool:
    """Whether *url*, which messages show, has a password: also one with ``/``, ``?`` or ``#``."""
    user, at, _ = url.partition("://")[2].rpartition("@")
    return (at != "" and ":" in user) or _SECRET.search(url) is not None


def usual_pattern(record_format: RecordFormat) -> str:
    """Names of the files of a format, if the definition names no pattern."""
    return "*.json" if record_format == "trajectory-pool" else "*.jsonl"


class TrainingTable(_Table):
    """Bounds of a run, and its gate; see `WorldModelAgent`. None keeps the default."""

    steps: int | None = Field(None, ge=1)
    passes: int | None = Field(None, ge=1)
    epochs: int | None = Field(None, ge=1)
    patience: int | None = Field(None, ge=1)
    batch_size: int | None = Field(None, ge=1)
    newest_transitions: int | None = Field(None, ge=1)
    recent_transitions: int | None = Field(None, ge=0)
    recent_weight: int | None = Field(None, ge=1, le=100)
    off_policy_gate: Literal["not_worse", "better"] | None = None


class AgentDefinition(_Table):
    """An agent as its file describes it.

    Attributes:
        description: What the agent does, for the reader of the file.
        schedule: As `Schedule.parse` reads it; the operator's setting wins.
        spec: Fields; may be left out for Genesis' own formats, whose fields are known.
    """

    description: str = ""
    schedule: str = "every 6h"
    source: SourceTable
    spec: SpecTable | None = None
    training: TrainingTable = TrainingTable()

    @field_validator("schedule")
    @classmethod
    def _check_schedule(cls, text: str) -> str:
        Schedule.parse(text)
        return text

    @model_validator(mode="after")
    def _check_spec(self) -> AgentDefinition:
        if self.spec is None and self.source.format not in GENESIS_SPECS:
            raise ValueError(
                f"the format {self.source.format!r} needs the tables spec.observation and "
                "spec.targets"
            )
        if self.spec is not None and self.source.format in _WITHOUT_STEPS:
            for name in ("history", "rollout_steps"):
                if name in self.spec.model_fields_set:
                    raise ValueError(
                        f"spec.{name}: the records of the format {self.source.format!r} are not "
                        f"steps that follow one another; remove {name}, or write records of the "
                        "format 'transitions'"
                    )
        self.transition_spec()
        return self

    def transition_spec(self) -> TransitionSpec:
        """Return the fields of the agent's transitions."""
        return GENESIS_SPECS[self.source.format] if self.spec is None else self.spec.to_spec()


def read_definition(path: Path) -> AgentDefinition:
    """Read and check the definition in *path*.

    Raises:
        DefinitionError: The file is missing, too large or not a regular file, or its content is
            wrong; the message names the line.
    """
    return parse_definition(_read(path), path)


def parse_definition(content: bytes, path: Path) -> AgentDefinition:
    """Check the *content* of the definition in *path*.

    Raises:
        DefinitionError: It is wrong; the message names the line.
    """
    try:
        text = content.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise DefinitionError(
            f"{path} is not UTF-8 at byte {error.start}: write it as UTF-8"
        ) from None
    except (ValueError, RecursionError) as error:  # also of a number with 5,000 digits
        raise DefinitionError(
            f"{path} is not TOML: {error}; write tables as [source], and keys as name = value"
        ) from None
    try:
        return AgentDefinition.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(_describe(error, text))
        raise DefinitionError(f"{path}: {problems}") from None


def _read(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DefinitionError(f"{path} does not exist any more: restore it") from None
    except OSError as error:
        raise DefinitionError(
            f"{path} cannot be read ({error.strerror}): it must be a regular file that this user "
            "may read"
        ) from None
    if len(content) > MAX_BYTES:
        raise DefinitionError(f"{path} is larger than {MAX_BYTES >> 10} KiB: shorten it")
    return content


def _field_types(fields: Mapping[str, FieldTable]) -> dict[str, FieldType]:
    return {name: _field_type(field) for name, field in fields.items()}


def _field_type(field: BoxField | DiscreteField | TextField) -> FieldType:
    if isinstance(field, BoxField):
        return Box(shape=field.shape, delta=field.delta)
    if isinstance(field, DiscreteField):
        return Discrete(values=field.values)
    return Text(buckets=field.buckets)


def _is_same(field: BoxField | DiscreteField | TextField, target: object) -> bool:
    """Whether *target* has the type of *field*, as a change or not."""
    if isinstance(field, BoxField):
        return isinstance(target, BoxField) and field.shape == target.shape
    return field == target


def _describe(error: ValidationError, text: str) -> list[str]:
    """Describe each problem of *error* in one line, with the line of *text*."""
    sentences = []
    for problem in error.errors(include_url=False):
        where = tuple(str(part) for part in problem["loc"] if part not in ("box", "discrete"))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            message = f"there is no such key{_nearest(where)}"
        elif problem["type"] == "missing":
            table = ".".join(where[:-1])
            message = f"missing; add {f'{where[-1]} to [{table}]' if table else f'[{where[-1]}]'}"
        line = _line_of(where, text)
        place = f"line {line}: " if line else ""
        name = f"{'.'.join(where)}: " if where else ""
        sentences.append(f"{place}{name}{message}")
    return sentences


def _nearest(where: Sequence[str]) -> str:
    """The key that was probably meant, or those that there are."""
    known = _keys_of(where[:-1])
    close = difflib.get_close_matches(where[-1], known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if known else ""


def _keys_of(table: Sequence[str]) -> list[str]:
    tables: dict[str, type[BaseModel]] = {
        "": AgentDefinition,
        "source": SourceTable,
        "spec": SpecTable,
        "training": TrainingTable,
    }
    model = tables.get(".".join(table))
    if model is not None:
        return sorted(model.model_fields)
    of_fields = {*BoxField.model_fields, *DiscreteField.model_fields, *TextField.model_fields}
    return sorted(of_fields) if table[:1] == ("spec",) else []


def _line_of(where: Sequence[str], text: str) -> int:
    """Number of the line of *text* that sets *where*, or the nearest table of it; 0 if none."""
    table: tuple[str, ...] = ()
    best, line_number = 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE.match(line):
            table = tuple(_QUOTED.sub("", part).strip() for part in header[1].split("."))
            path = table
        elif key := _KEY.match(line):
            name = key[1] if key[1] is not None else key[2] or key[3]
            path = (*table, *((name,) if key[3] is None else key[3].split(".")))
        else:
            continue
        if len(path) > best and tuple(where[: len(path)]) == path:
            best, line_number = len(path), number
    return line_number
