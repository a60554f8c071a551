"""Takes what an agent's log of decisions holds into its replay buffer, each outcome once.

Each call writes one segment of the buffer, which appears complete or not at all, and then how far
it has read. A call that was interrupted between the two is repeated by the next one, which replaces
that segment. So a crash at any moment loses no record and doubles none. Only one process may do
this at a time, as only one run of an agent collects.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from infrastructure.agent_contract.transition import Transition
from infrastructure.decisions.log import read_record, read_records, segments
from infrastructure.decisions.records import DamagedLineError, LogRecord, Place
from infrastructure.files import JsonFileError, atomic_file, read_model, write_model
from infrastructure.trajectories.record import encode_record, parse_transition
from infrastructure.trajectories.segments import next_number

STATE_FILE = "taken-in.json"  # beside the segments
DECISION_KEY = "decision"
"""Name in `Transition.info` of the decision that a transition was made from."""
_LOCK = ".intake.lock"
_SETTLING_SECONDS = 10.0  # after a deadline, in which reports that came in time are written
_MOST_STATE_BYTES = 1 << 28


class _State(BaseModel):
    """How far the log was taken in.

    Attributes:
        generation: Number of calls that took anything in.
        segment, offset: Place of the next record to read.
        partial: Decision to place and deadline of its newest partial outcome.
    """

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    generation: int = 0
    segment: int = 0
    offset: int = 0
    partial: dict[str, tuple[int, int, float]] = {}


@dataclass(kw_only=True, slots=True)
class IntakeReport:
    """What a call of `take_in` has done.

    Attributes:
        transitions: Number of transitions added to the replay buffer.
        skipped: Reason for each record that was left out.
    """

    transitions: int = 0
    skipped: list[str] = field(default_factory=list)


def take_in(log: Path, replay: Path, *, now: float, source: str = "") -> IntakeReport:
    """Add what is new in the folder *log* to the replay buffer in the folder *replay*.

    A decision becomes a transition with its final outcome, or with its partial one once its
    deadline has passed *now* (Unix seconds). It has the decision's propensity, unless the outcome
    came after the deadline.

    Args:
        source: Name of the log among those of the agent; see `logs_of`.

    Raises:
        OSError: The log cannot be read, or the buffer not be written; nothing counts as taken in.
    """
    report = IntakeReport()
    if segments(log):
        with intake_lock(log):
            _take_in(log, replay, now, source, report)
    return report


@contextmanager
def intake_lock(log: Path) -> Iterator[None]:
    """Keep others from moving records of *log* to the replay buffer, and from removing any.

    Raises:
        OSError: The lock cannot be created.
    """
    log.mkdir(parents=True, exist_ok=True)
    lock = os.open(log / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _take_in(log: Path, replay: Path, now: float, source: str, report: IntakeReport) -> None:
    state = _read_state(log / STATE_FILE)
    reading = _Reading(log, state, report)
    segment = _segment_of(replay, source, state.generation + 1)
    replay.mkdir(parents=True, exist_ok=True)
    # Records are made one by one, since the log may be larger than the memory.
    records = reading.lines(now)
    first = next(records, None)
    if first is not None:
        with atomic_file(segment) as file:
            file.write(first)
            file.writelines(records)
        state.generation += 1
    write_model(log / STATE_FILE, state)


def taken_until(log: Path) -> Place:
    """Place up to which the log in the folder *log* was taken in.

    Raises:
        OSError: The state cannot be read, or is damaged.
    """
    state = _read_state(log / STATE_FILE)
    return Place(state.segment, state.offset)


class _Reading:
    def __init__(self, log: Path, state: _State, report: IntakeReport) -> None:
        self._log, self._state, self._report = log, state, report

    def lines(self, now: float) -> Iterator[bytes]:
        """Encoded transitions of all that is new; moves the state along."""
        state = self._state
        start = Place(state.segment, state.offset)
        for place, end, record in read_records(self._log, start, self._damaged):
            state.segment, state.offset = end
            if record["kind"] == "transition":
                body = record["transition"]
                yield from self._encoded(partial(parse_transition, body), record)
            elif record["kind"] == "outcome":
                yield from self._outcome(record, place)
        until = now - _SETTLING_SECONDS
        due = [name for name, (_, _, deadline) in state.partial.items() if deadline < until]
        for name in due:
            segment, offset, _ = state.partial.pop(name)
            yield from self._outcome_at(Place(segment, offset))

    def _outcome(self, record: LogRecord, place: Place) -> Iterator[bytes]:
        if record["state"] == "partial":
            self._state.partial[record["id"]] = (*place, record["deadline"])
            return
        self._state.partial.pop(record["id"], None)
        yield from self._joined(record)

    def _outcome_at(self, place: Place) -> Iterator[bytes]:
        try:
            record = read_record(self._log, place)
        except (OSError, DamagedLineError) as error:
            self._report.skipped.append(f"outcome at {place}: {error}")
        else:
            yield from self._joined(record)

    def _joined(self, outcome: LogRecord) -> Iterator[bytes]:
        try:
            decision = read_record(self._log, Place(*outcome["of"]))
        except (OSError, DamagedLineError) as error:
            self._report.skipped.append(f"decision {outcome['id']}: {error}")
        else:
            yield from self._encoded(partial(joined, decision, outcome), outcome)

    def _encoded(self, make: Callable[[], Transition], record: LogRecord) -> Iterator[bytes]:
        try:
            line = encode_record(make())
        except (ValueError, TypeError, KeyError) as error:
            self._report.skipped.append(f"{record['kind']} {record['id']}: {error}")
        else:
            self._report.transitions += 1
            yield line

    def _damaged(self, path: Path, offset: int, reason: str) -> None:
        self._report.skipped.append(f"{path.name} at byte {offset}: {reason}")


def joined(decision: LogRecord, outcome: LogRecord) -> Transition:
    """The transition of a decision, or of a client's own choice, and its outcome.

    Raises:
        ValueError: A field has a type that no transition takes.
    """
    info: dict[str, Any] = {DECISION_KEY: decision["id"]}
    if version := decision.get("answer", {}).get("version"):
        info["version"] = version
    if outcome["state"] == "late":
        info["late"] = True
    if outcome.get("error"):
        info["error"] = outcome["error"]
    return Transition(
        group=decision["group"],
        observation=decision["observation"],
        action=decision["actions"][decision["chosen"]],
        reward=outcome.get("reward") or 0.0,
        next_observation=outcome.get("next_observation") or {},
        terminated=bool(outcome.get("terminated")),
        propensity=None if outcome["state"] == "late" else decision["propensity"],
        info=info,
    )


def transition_body(fields: Mapping[str, Any]) -> dict[str, Any]:
    """All fields of a transition, from those that a client sent."""
    return {
        "group": fields["group"],
        "observation": fields["observation"],
        "action": fields["action"],
        "reward": fields.get("reward", 0.0),
        "next_observation": fields.get("next_observation", {}),
        "terminated": fields.get("terminated", False),
        "propensity": fields.get("propensity"),
        "info": fields.get("info", {}),
    }


def _read_state(path: Path) -> _State:
    """The state of the last call; a new one if there was none.

    Raises:
        OSError: The file exists and cannot be read, or it is damaged: to begin at the start would
            double what was taken in.
    """
    try:
        return read_model(path, _State, limit=_MOST_STATE_BYTES)
    except FileNotFoundError:
        return _State()
    except JsonFileError as error:
        remedy = "restore this file from a copy, or remove the log beside it"
        raise OSError(f"{error}; {remedy}") from None


def _segment_of(replay: Path, source: str, generation: int) -> Path:
    """The buffer's segment of a call: the one that an interrupted call has left, or the next."""
    ending = f"-decisions-{f'{source}-' if source else ''}{generation:08d}.jsonl"
    for path in replay.glob(f"*{ending}"):
        return path
    return replay / f"{next_number(replay):08d}{ending}"
