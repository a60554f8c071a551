"""Proposes an agent's definition from a sample of its records, and says what is missing."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    Text,
    Transition,
)
from infrastructure.files import open_regular
from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.genesis_records.records import read_lines
from infrastructure.trajectories.record_source.definition import SourceTable
from infrastructure.trajectories.record_source.formats import (
    GENESIS_SPECS,
    DecodedRecord,
    RecordFormat,
    flatten,
    json_object,
    line_decoder,
)
from infrastructure.trajectories.schema import is_usable, label_of
from infrastructure.trajectories.split import (
    MIN_HELD_OUT_GROUPS,
    MIN_TRAINING_TRANSITIONS,
    split_by_group,
)

MAX_SAMPLE = 10_000
"""Number of records of a sample that are read."""

_MAX_LABELS = 20
_LONGEST_LABEL = 60
_GROUPS = ("group", "episode", "conversation", "task", "session", "ticket", "thread", "trajectory")
_TARGETS = ("reward", "score", "success", "solved", "outcome", "passed", "result", "rating")
_TIMES = re.compile(r"(^|[._])(time|timestamp|date|created|updated)([._]|$)|_at$")
_IDENTITIES = re.compile(r"(^|[._])(id|uuid)$")


class SampleError(ValueError):
    """Nothing in a sample can be read as a record; the message says what was tried."""


@dataclass(kw_only=True, slots=True)
class Proposal:
    """A definition as a sample suggests it.

    Attributes:
        source: Format of the records, and its keys.
        observation, action, targets: Proposed fields; empty for Genesis' own formats.
        records, transitions, groups: Counts of the sample.
        notes: Remarks: what was left out, and why.
        missing: What the definition lacks and the sample did not show; empty if it is complete.
    """

    source: dict[str, object]
    observation: dict[str, FieldType] = field(default_factory=dict)
    action: dict[str, FieldType] = field(default_factory=dict)
    targets: dict[str, FieldType] = field(default_factory=dict)
    records: int = 0
    transitions: int = 0
    groups: int = 0
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def success(self) -> tuple[str, str] | None:
        """Target and label that mean success, if one is obvious."""
        for name, target in self.targets.items():
            if isinstance(target, Discrete) and set(target.values) == {"false", "true"}:
                return name, "true"
        return None

    def to_toml(self, path: Path, schedule: str) -> str:
        """The definition's text, for records in the folder *path*."""
        source = {"path": str(path), **self.source}
        lines = [f"schedule = {toml_string(schedule)}", "", "[source]"]
        lines += [f"{key} = {_value(value)}" for key, value in source.items()]
        if self.success is not None:
            lines += ["", "[spec]", f"success = {_value(list(self.success))}"]
        tables = {"observation": self.observation, "action": self.action, "targets": self.targets}
        for name, fields in tables.items():
            if fields:
                lines += ["", f"[spec.{name}]"]
                lines += [f"{_key(key)} = {_field(kind)}" for key, kind in fields.items()]
        return "\n".join(lines) + "\n"


def propose(path: Path, name: str, *, group: str = "", targets: Sequence[str] = ()) -> Proposal:
    """Propose the definition of the agent *name* from the sample in *path*.

    Args:
        group: Key of the group, if the records are of no known format; empty to look for one.
        targets: Names of the targets; empty to look for them.

    Raises:
        SampleError: No record of the sample can be read.
        OSError: *path* cannot be read, or is not a regular file.
    """
    open_regular(path).close()  # a pipe or a device may have no end
    record_format = _detect(path)
    proposal = _propose_for_format(record_format, path, name, group, targets)
    if group and record_format != "records":
        proposal.notes.append(
            f"the group {group!r} is not used: the format {record_format} has its own"
        )
    return proposal


def _propose_for_format(
    record_format: RecordFormat, path: Path, name: str, group: str, targets: Sequence[str]
) -> Proposal:
    if record_format in GENESIS_SPECS:
        read = (
            read_trajectory_pool if record_format == "trajectory-pool" else _reader(record_format)
        )
        proposal = Proposal(source={"format": record_format})
        _count(proposal, list(read(path, lambda *_: None)))
        proposal.notes.append(
            "the fields are those of Genesis' format, without what is the outcome"
        )
        return proposal
    if record_format == "transitions":
        return _propose_for_transitions(path, name, targets)
    return _propose_for_records(path, group, targets)


def _detect(path: Path) -> RecordFormat:
    """The format in which most records of the sample can be read."""
    if next(read_trajectory_pool(path, lambda *_: None), None) is not None:
        return "trajectory-pool"
    counts = Counter[RecordFormat]()
    lines, objects = 0, 0
    formats: tuple[RecordFormat, ...] = ("transitions", "replay-trajectories", "casebank")
    decoders = {name: line_decoder(name, SourceTable(path=path)) for name in formats}
    for line in _lines(path):
        lines += 1
        objects += _is_decoded(json_object, line)
        for name, decode in decoders.items():
            counts[name] += _is_decoded(decode, line)
    if not objects:
        raise SampleError(
            f"{path} has no record: of {lines} lines none is a JSON object; write one per line"
        )
    best, count = counts.most_common(1)[0]
    return best if 2 * count > objects else "records"


def _is_decoded(decode: Callable[[bytes], object], line: bytes) -> bool:
    try:
        decode(line)
    except ValueError:
        return False
    return True


def _lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for _, line in zip(range(MAX_SAMPLE), file, strict=False):
            if line.strip():
                yield line


def _reader(
    record_format: RecordFormat,
) -> Callable[[Path, Callable[..., None]], Iterator[Transition]]:
    decode = line_decoder(record_format, SourceTable(path=Path()))
    return lambda path, on_skip: read_lines(path, lambda line: decode(line).transitions, on_skip)


def _count(proposal: Proposal, transitions: Sequence[Transition]) -> None:
    """Count *transitions*, and note whether they would be enough to train on."""
    groups = [each.group for each in transitions]
    proposal.transitions, proposal.groups = len(groups), len(set(groups))
    parts = split_by_group(groups)
    held_out = min(len({groups[row] for row in parts[part]}) for part in ("calibration", "test"))
    if len(parts["train"]) < MIN_TRAINING_TRANSITIONS or held_out < MIN_HELD_OUT_GROUPS:
        proposal.notes.append(
            f"the sample alone is not enough to train on: {len(parts['train'])} transitions in the "
            f"training groups ({MIN_TRAINING_TRANSITIONS} needed) and {held_out} groups in a "
            f"held-out part ({MIN_HELD_OUT_GROUPS} needed)"
        )


def _propose_for_transitions(path: Path, name: str, targets: Sequence[str]) -> Proposal:
    proposal = Proposal(source={"format": "transitions"})
    decode = line_decoder("transitions", SourceTable(path=path))
    records: list[DecodedRecord] = [
        decode(line) for line in _lines(path) if _is_decoded(decode, line)
    ]
    proposal.records = len(records)
    transitions = [each for record in records for each in record.transitions]
    named = sorted({record.agent for record in records if record.agent})
    if named and named != [name]:
        proposal.source["agents"] = named
        proposal.notes.append(f"the records name the agents {', '.join(named)}: keep those wanted")
    _count(proposal, transitions)
    proposal.observation = _fields(
        proposal, "observation", [each.observation for each in transitions]
    )
    proposal.action = _fields(proposal, "action", [each.action for each in transitions])
    results = [
        {**each.next_observation, "reward": each.reward, "terminated": each.terminated}
        for each in transitions
    ]
    found = _fields(proposal, "next_observation", results)
    if targets:
        proposal.missing += _absent(targets, found)
    wanted = targets or found
    proposal.targets = {
        name: _as_target(kind, name, proposal.observation)
        for name, kind in found.items()
        if name in wanted and not isinstance(kind, Text)
    }
    _name_what_is_missing(proposal, found)
    return proposal


def _propose_for_records(path: Path, group: str, targets: Sequence[str]) -> Proposal:
    proposal = Proposal(source={"format": "records"})
    rows = [flatten(json_object(line)) for line in _lines(path) if _is_decoded(json_object, line)]
    proposal.records = len(rows)
    names = sorted({name for row in rows for name in row})
    key = group or _find_group(rows, names)
    if key and key in names:
        proposal.source["group"] = key
        _count(proposal, [_grouped(row, key) for row in rows if row.get(key) not in (None, "")])
    else:
        problem = f"no record has {group!r}" if group else "no key looks like one"
        proposal.missing.append(
            f"the group (episode, task, conversation): {problem}; name it with --group, of "
            f"{', '.join(names[:_MAX_LABELS])}"
        )
    identity = next((name for name in names if name == "id" and name != key), "")
    if identity:
        proposal.source["id"] = identity
    fields = _fields(
        proposal, "record", [{k: v for k, v in row.items() if k != key} for row in rows]
    )
    if targets:
        proposal.missing += _absent(targets, fields)
        chosen = set(targets)
    else:
        chosen = {name for name in fields if name.rpartition(".")[2] in _TARGETS}
    proposal.targets = {
        name: kind for name, kind in fields.items() if name in chosen and not isinstance(kind, Text)
    }
    proposal.observation = {name: kind for name, kind in fields.items() if name not in chosen}
    if proposal.observation:
        proposal.notes.append(
            "every other field is proposed as an observation: delete those that are known only "
            "after the action, and move those that describe the action to [spec.action]"
        )
    _name_what_is_missing(proposal, fields)
    return proposal


def _name_what_is_missing(proposal: Proposal, fields: Mapping[str, FieldType]) -> None:
    if not proposal.observation:
        proposal.missing.append("an observation: no input field is in every record and varies")
    if not proposal.targets:
        there = ", ".join(name for name, kind in fields.items() if not isinstance(kind, Text))
        how = f"name it with --target, of: {there}" if there else "no field could be one"
        proposal.missing.append(f"a target, which the world model predicts; {how}")


def _absent(targets: Sequence[str], fields: Mapping[str, FieldType]) -> list[str]:
    return [
        f"the target {name!r}: it is not in every record, does not vary, or is text"
        for name in targets
        if name not in fields or isinstance(fields[name], Text)
    ]


def _grouped(row: Mapping[str, FieldValue], key: str) -> Transition:
    return Transition(group=str(row[key]), observation={}, action={})


def _find_group(rows: Sequence[Mapping[str, FieldValue]], names: Sequence[str]) -> str:
    """A key in every record that sounds like a group, and whose values repeat if any does."""
    complete = [
        name
        for name in names
        if all(isinstance(row.get(name), str | int) and row[name] != "" for row in rows)
    ]
    sounding = [name for name in complete if any(word in name.casefold() for word in _GROUPS)]
    distinct = {name: len({row[name] for row in rows}) for name in sounding}
    varying = [name for name in sounding if distinct[name] > 1]
    repeated = [name for name in varying if distinct[name] < len(rows)]
    return min(repeated or varying, key=lambda name: (-distinct[name], name), default="")


def _fields(
    proposal: Proposal, part: str, rows: Sequence[Mapping[str, FieldValue]]
) -> dict[str, FieldType]:
    """The types of the fields that every row has and that vary; notes name the others."""
    found: dict[str, FieldType] = {}
    for name in sorted({name for row in rows for name in row}):
        values = [row[name] for row in rows if name in row]
        kind, why = _field_type(name, values)
        if len(values) < len(rows):
            why = f"{len(rows) - len(values)} of {len(rows)} records lack it"
        if kind is not None and not why:
            found[name] = kind
        elif name not in ("reward", "terminated") or part == "record":
            proposal.notes.append(f"{part} {name!r} is left out: {why}")
    return found


def _field_type(name: str, values: Sequence[FieldValue]) -> tuple[FieldType | None, str]:
    """The type of a field with *values*, or None and the reason."""
    if len({str(value) for value in values}) == 1:
        return None, "it is the same in every record"
    if _TIMES.search(name.casefold()) or _IDENTITIES.search(name.casefold()):
        return None, "it looks like a time or an identity, which no model can learn from"
    return _type_of_values(values)


def _type_of_values(values: Sequence[FieldValue]) -> tuple[FieldType | None, str]:
    if all(isinstance(value, bool) for value in values):
        return Discrete(values=("false", "true")), ""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = [value for value in values if isinstance(value, int | float)]
        return (Box(), "") if any(map(is_usable, numbers)) else (None, "no number can be used")
    if all(isinstance(value, tuple | list) for value in values):
        return _list_type([value for value in values if isinstance(value, tuple | list)])
    if not all(isinstance(value, str) for value in values):
        return None, "its values are of different types"
    labels = sorted({label_of(value) for value in values})
    if _are_labels(labels) and 5 * len(labels) <= len(values):
        return Discrete(values=tuple(labels)), ""
    return Text(), ""


def _list_type(values: Sequence[Sequence[object]]) -> tuple[FieldType | None, str]:
    if all(isinstance(item, str) for value in values for item in value):
        return Text(), ""
    sizes = {len(value) for value in values}
    if len(sizes) > 1:
        return None, f"its length varies from {min(sizes)} to {max(sizes)}"
    return Box(shape=(sizes.pop(),)), ""


def _are_labels(labels: Sequence[str]) -> bool:
    return len(labels) <= _MAX_LABELS and all(
        len(label) <= _LONGEST_LABEL and label.isprintable() for label in labels
    )


def _as_target(kind: FieldType, name: str, observation: Mapping[str, FieldType]) -> FieldType:
    """A number that is also an observation is predicted as its change."""
    before = observation.get(name)
    if isinstance(kind, Box) and isinstance(before, Box) and before.shape == kind.shape:
        return replace(kind, delta=True)
    return kind


def _field(kind: FieldType) -> str:
    if isinstance(kind, Discrete):
        return f'{{ type = "discrete", values = {_value(list(kind.values))} }}'
    if isinstance(kind, Text):
        return f'{{ type = "text", buckets = {kind.buckets} }}'
    shape = f", shape = {list(kind.shape)}" if kind.shape else ""
    return f'{{ type = "box"{shape}{", delta = true" if kind.delta else ""} }}'


def _value(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return toml_string(str(value))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_string(name)


def toml_string(text: str) -> str:
    """*text* as a basic string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
