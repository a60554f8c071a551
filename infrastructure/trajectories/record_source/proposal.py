"""Proposes an agent's definition from a sample of its records, and says what is missing."""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    Text,
    Transition,
    TransitionSpec,
)
from infrastructure.trajectories.data_checks import check_data
from infrastructure.trajectories.genesis_records import read_trajectory_pool
from infrastructure.trajectories.record_source.definition import SourceTable, usual_pattern
from infrastructure.trajectories.record_source.field_types import doubt_about, field_type
from infrastructure.trajectories.record_source.formats import (
    GENESIS_SPECS,
    RecordFormat,
    flatten,
    json_object,
    line_decoder,
)
from infrastructure.trajectories.record_source.sample import (
    Decoded,
    detect_format,
    read_sample,
)
from infrastructure.trajectories.schema import is_missing
from infrastructure.trajectories.split import (
    MIN_HELD_OUT_GROUPS,
    MIN_TRAINING_TRANSITIONS,
    split_rows,
)

_AGENT = "agent"
_MAX_NAMES = 20  # that a message lists
_LEAST_SHARE = 0.05  # of the records, which must have a field so that it is proposed
_GROUPS = ("group", "episode", "conversation", "task", "session", "ticket", "thread", "trajectory")
_TARGETS = ("reward", "score", "success", "solved", "outcome", "passed", "result", "rating")

Named = TypeVar("Named")


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

    @property
    def spec(self) -> TransitionSpec | None:
        """The proposed fields; None while some are missing."""
        if self.missing:
            return None
        return TransitionSpec(
            observation=self.observation, action=self.action, targets=self.targets
        )

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
    record_format = detect_format(path)
    proposal = _propose_for_format(record_format, path, name, group, targets)
    if pattern := _pattern(path, record_format):
        proposal.source["pattern"] = pattern
    if group and record_format != "records":
        proposal.notes.append(
            f"the group {group!r} is not used: the format {record_format} has its own"
        )
    return proposal


def _pattern(path: Path, record_format: RecordFormat) -> str:
    """Pattern of files like *path*, if the usual one of the format does not match it."""
    usual = usual_pattern(record_format)
    if any(fnmatch.fnmatchcase(path.name, pattern) for pattern in (usual, f"{usual}[.-][0-9]*")):
        return ""
    return f"*{path.suffix}" if path.suffix else path.name


def _propose_for_format(
    record_format: RecordFormat, path: Path, name: str, group: str, targets: Sequence[str]
) -> Proposal:
    if record_format in GENESIS_SPECS:
        proposal = Proposal(source={"format": record_format})
        if record_format == "trajectory-pool":
            transitions = list(read_trajectory_pool(path, lambda *_: None))
        else:
            records = _records(proposal, path, line_decoder(record_format, SourceTable(path=path)))
            transitions = [transition for record in records for transition in record.transitions]
        _count(proposal, transitions)
        proposal.notes.append(
            "the fields are those of Genesis' format, without what is the outcome"
        )
        _doubt(proposal, GENESIS_SPECS[record_format], transitions)
        return proposal
    if record_format == "transitions":
        return _propose_for_transitions(path, name, targets)
    return _propose_for_records(path, name, group, targets)


def _records(proposal: Proposal, path: Path, decode: Callable[[bytes], Decoded]) -> list[Decoded]:
    """The records of the sample; counted, with a note of lines that are not records."""
    sample = read_sample(path, decode)
    proposal.records = len(sample.records)
    if sample.problems:
        proposal.notes.append(sample.problems)
    return sample.records


def _count(proposal: Proposal, transitions: Sequence[Transition]) -> None:
    """Count *transitions*, and note whether they would be enough to train on."""
    groups = [transition.group for transition in transitions]
    proposal.transitions, proposal.groups = len(groups), len(set(groups))
    parts = split_rows("group", groups)
    held_out = min(len({groups[row] for row in parts[part]}) for part in ("calibration", "test"))
    if len(parts["train"]) < MIN_TRAINING_TRANSITIONS or held_out < MIN_HELD_OUT_GROUPS:
        proposal.notes.append(
            f"the sample alone is not enough to train on: {len(parts['train'])} transitions in the "
            f"training groups ({MIN_TRAINING_TRANSITIONS} needed) and {held_out} groups in a "
            f"held-out part ({MIN_HELD_OUT_GROUPS} needed)"
        )


def _propose_for_transitions(path: Path, name: str, targets: Sequence[str]) -> Proposal:
    proposal = Proposal(source={"format": "transitions"})
    records = _records(proposal, path, line_decoder("transitions", SourceTable(path=path)))
    named = sorted({record.agent for record in records if record.agent})
    if name in named:
        records = _own(proposal, records, name, lambda record: record.agent)
    elif named:
        proposal.source["agents"] = named
        proposal.notes.append(f"the records name the agents {', '.join(named)}: keep those wanted")
    transitions = [transition for record in records for transition in record.transitions]
    _count(proposal, transitions)
    proposal.observation = _fields(
        proposal, "observation", [transition.observation for transition in transitions]
    )
    proposal.action = _fields(proposal, "action", [transition.action for transition in transitions])
    results = [
        {
            **transition.next_observation,
            "reward": transition.reward,
            "terminated": transition.terminated,
        }
        for transition in transitions
    ]
    result_fields = _fields(proposal, "next_observation", results)
    if targets:
        proposal.missing += _absent(targets, result_fields)
    wanted = targets or result_fields
    proposal.targets = {
        name: _as_target(kind, name, proposal.observation)
        for name, kind in result_fields.items()
        if name in wanted and not isinstance(kind, Text)
    }
    _name_what_is_missing(proposal, result_fields)
    _doubt(proposal, proposal.spec, transitions)
    return proposal


def _propose_for_records(path: Path, name: str, group: str, targets: Sequence[str]) -> Proposal:
    proposal = Proposal(source={"format": "records"})
    rows = _records(proposal, path, lambda line: flatten(json_object(line)))
    if looks_like := _transition_problem(path):
        proposal.notes.append(looks_like)
    rows = _of_agent(proposal, rows, name)
    names = sorted({name for row in rows for name in row})
    key = group or _find_group(rows, names)
    if key and key in names:
        proposal.source["group"] = key
        _count(proposal, [_grouped(row, key) for row in rows if row.get(key) not in (None, "")])
    else:
        problem = f"no record has {group!r}" if group else "no key looks like one"
        proposal.missing.append(
            f"the group (episode, task, conversation): {problem}; name it with --group, of "
            f"{', '.join(names[:_MAX_NAMES])}"
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
    grouped = [row for row in rows if row.get(key) not in (None, "")]
    _doubt(proposal, proposal.spec, [_grouped(row, key) for row in grouped])
    return proposal


def _transition_problem(path: Path) -> str:
    """Why the first record with the keys of the format ``transitions`` is not one."""
    records = read_sample(path, json_object).records
    if not records or not {"group", "observation"} <= records[0].keys():
        return ""
    why = read_sample(path, line_decoder("transitions", SourceTable(path=path))).first_problem
    return f"the records look like the format transitions, but cannot be read so: {why}"


def _of_agent(
    proposal: Proposal, rows: list[dict[str, FieldValue]], name: str
) -> list[dict[str, FieldValue]]:
    """Those of *rows* that are of the agent *name*, if their key ``agent`` names it."""
    if not all(isinstance(row.get(_AGENT), str) for row in rows):
        return rows
    if all(row[_AGENT] != name for row in rows):  # names of people, perhaps
        return rows
    proposal.source["agent"] = _AGENT
    return _own(proposal, rows, name, lambda row: str(row[_AGENT]))


def _own(
    proposal: Proposal, records: list[Named], name: str, agent_of: Callable[[Named], str]
) -> list[Named]:
    """The records of the agent *name*, and those that name none; a note counts the others."""
    matching = [record for record in records if agent_of(record) in ("", name)]
    if others := len(records) - len(matching):
        proposal.notes.append(f"{others} of {len(records)} records name other agents")
    return matching


def _name_what_is_missing(proposal: Proposal, fields: Mapping[str, FieldType]) -> None:
    if not proposal.observation:
        proposal.missing.append("an observation: no input field is in enough records and varies")
    if not proposal.targets:
        there = ", ".join(name for name, kind in fields.items() if not isinstance(kind, Text))
        how = f"name it with --target, of: {there}" if there else "no field could be one"
        proposal.missing.append(f"a target, which the world model predicts; {how}")


def _absent(targets: Sequence[str], fields: Mapping[str, FieldType]) -> list[str]:
    return [
        f"the target {name!r}: it is in too few records, does not vary, or is text"
        for name in targets
        if name not in fields or isinstance(fields[name], Text)
    ]


def _grouped(row: Mapping[str, FieldValue], key: str) -> Transition:
    """*row* as a transition whose inputs and results may be any of its fields."""
    return Transition(group=str(row[key]), observation=row, action={}, next_observation=row)


def _doubt(
    proposal: Proposal, spec: TransitionSpec | None, transitions: Sequence[Transition]
) -> None:
    """Note what would make the score of a model of the sample look too good."""
    if spec is not None and transitions:
        rows = split_rows(spec.split, [transition.group for transition in transitions])
        proposal.notes += map(str, check_data(spec, transitions, rows))


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
    proposal: Proposal, part: str, rows: Sequence[Mapping[str, FieldValue | None]]
) -> dict[str, FieldType]:
    """The types of the fields that enough rows have and that vary; notes name the others."""
    fields: dict[str, FieldType] = {}
    for name in sorted({name for row in rows for name in row}):
        values = [
            value for row in rows if (value := row.get(name)) is not None and not is_missing(value)
        ]
        if not values:
            continue
        kind, why = field_type(name, values)
        lacking = f"{len(rows) - len(values)} of {len(rows)} records lack it"
        if len(values) < _LEAST_SHARE * len(rows):
            why = lacking
        if kind is not None and not why:
            fields[name] = kind
            if len(values) < len(rows):
                proposal.notes.append(
                    f"{part} {name!r}: {lacking}; it counts as missing there, and as a target it "
                    "keeps them out of training"
                )
            if remark := doubt_about(kind, values):
                proposal.notes.append(f"{part} {name!r}: {remark}")
        elif name not in ("reward", "terminated") or part == "record":
            proposal.notes.append(f"{part} {name!r} is left out: {why}")
    return fields


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
        return '{ type = "text" }'
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
