"""Removes a group's data from an agent's log of decisions and replay buffer, while both are in use.

What is to be removed is written to a file first, so that a removal that was interrupted at any
point is finished by the next one. A predictor notices by the mark, and forgets removed decisions.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from infrastructure.decisions.intake import intake_lock
from infrastructure.decisions.log import read_records, segment_path
from infrastructure.decisions.records import BEGINNING, Place
from infrastructure.files import read_model, write_model
from infrastructure.trajectories.removal import (
    Spans,
    blank,
    blank_compacted,
    find_compacted_group,
    find_group,
)

MARK = "removed.json"  # in the log's folder; a new one after each removal
_INTENT = "removing.json"
_REQUESTS_SECONDS = 0.3  # in which a predictor ends what it had begun before it saw the mark
_MOST_INTENT_BYTES = 1 << 30


class _Intent(BaseModel):
    """What a removal has found, and blanks; of the group only a hash is kept.

    Attributes:
        log: Number of a segment of the log to its lines.
        replay, compacted: Segment of the replay buffer, as a file and in Parquet, to its lines.
    """

    model_config = ConfigDict(extra="forbid")
    format: Literal[1] = 1
    group_sha256: str
    log: dict[int, Spans] = {}
    replay: dict[str, Spans] = {}
    compacted: dict[str, Spans] = {}


class _Mark(BaseModel):
    """The last removal; of the group only a hash is kept."""

    group_sha256: str
    removed_at: float


@dataclass(kw_only=True, slots=True)
class Removal:
    """What was removed.

    Attributes:
        records: Number of records of the log.
        transitions: Segment of the replay buffer to the offsets of its removed transitions.
        decisions: Ids of its decisions.
    """

    records: int
    transitions: dict[str, list[int]]
    decisions: set[str] = field(default_factory=set)

    def __add__(self, other: Removal) -> Removal:
        """Both; of one replay buffer, from which each removed what the other left."""
        transitions = {name: list(offsets) for name, offsets in self.transitions.items()}
        for name, offsets in other.transitions.items():
            transitions.setdefault(name, []).extend(offsets)
        return Removal(
            records=self.records + other.records,
            transitions=transitions,
            decisions=self.decisions | other.decisions,
        )

    @property
    def count(self) -> int:
        """Number of removed transitions."""
        return sum(map(len, self.transitions.values()))


def removed_at(log: Path) -> int:
    """A number that changes with each removal from *log*; 0 before the first."""
    try:
        return (log / MARK).stat().st_mtime_ns
    except OSError:
        return 0


def remove_group(
    log: Path, replay: Path, group: str, poll: Callable[[], object] = lambda: None
) -> Removal:
    """Remove all records of *group*; others may append and read meanwhile.

    Records that a collecting run adds of itself after its segments were looked through stay.

    Args:
        log: Folder of the agent's log.
        replay: Folder of its replay buffer.
        poll: Called often; an exception that it raises interrupts the removal.

    Raises:
        OSError: A file cannot be read or written; call again to finish.
        MisconfiguredError: There are Parquet files, and pyarrow is not installed.
    """
    sha256 = hashlib.sha256(group.encode(errors="surrogatepass")).hexdigest()
    with intake_lock(log):
        intent = _read_intent(log)
        if intent is not None and intent.group_sha256 != sha256:
            _carry_out(log, replay, intent, poll)
            intent = None
        intent = intent or _Intent(group_sha256=sha256)
        ids = set[str]()
        end = _find_records(log, group, ids, BEGINNING, intent.log)
        _merge(intent.replay, find_group(replay, group))
        write_model(log / _INTENT, intent)
        _carry_out(log, replay, intent, poll)
        write_model(log / MARK, _Mark(group_sha256=sha256, removed_at=time.time()))
        time.sleep(_REQUESTS_SECONDS)
        _find_records(log, group, ids, end, intent.log)  # what came in meanwhile
        _merge(intent.compacted, find_compacted_group(replay, group))
        write_model(log / _INTENT, intent)
        _carry_out(log, replay, intent, poll)
        (log / _INTENT).unlink()
    removed = dict[str, set[int]]()
    for found in (intent.replay, intent.compacted):
        for name, spans in found.items():
            removed.setdefault(name, set()).update(offset for offset, _ in spans)
    return Removal(
        records=sum(map(len, intent.log.values())),
        transitions={name: sorted(offsets) for name, offsets in removed.items()},
        decisions=ids,
    )


def _find_records(
    log: Path, group: str, ids: set[str], start: Place, found: dict[int, Spans]
) -> Place:
    """Add to *found* what belongs to *group* from *start* on, and to *ids* its decisions."""
    for place, end, record in read_records(log, start):
        kind, name = record["kind"], record["id"]
        if kind in ("decision", "choice") and record["group"] == group:
            ids.add(name)
        transition = record.get("transition") or {}
        if (kind != "transition" and name in ids) or transition.get("group") == group:
            span = place.offset, end.offset - place.offset
            found.setdefault(place.segment, []).append(span)
        start = end
    return start


def _carry_out(log: Path, replay: Path, intent: _Intent, poll: Callable[[], object]) -> None:
    for number, spans in intent.log.items():
        blank(segment_path(log, number), spans)
    for name, spans in intent.replay.items():
        with suppress(FileNotFoundError):  # compacted before it was blanked: found in Parquet
            blank(replay / name, spans)
    blank_compacted(replay, intent.compacted, poll)


def _merge(into: dict[str, Spans], found: dict[str, Spans]) -> None:
    for name, spans in found.items():
        into[name] = sorted({*into.get(name, []), *spans})


def _read_intent(log: Path) -> _Intent | None:
    try:
        return read_model(log / _INTENT, _Intent, limit=_MOST_INTENT_BYTES)
    except FileNotFoundError:
        return None
