"""Which records of a source are new: the replay buffer decides."""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from infrastructure.agent_contract.transition import Transition, TransitionSpec
from infrastructure.trajectories.record_source.formats import Decode, DecodedRecord
from infrastructure.trajectories.record_source.lines import split_objects, whole_end
from infrastructure.trajectories.record_source.report import SourceReport
from infrastructure.trajectories.replay_buffer import ReplayBuffer
from infrastructure.trajectories.schema import transition_problem

RECORD_KEY = "source_record"
"""Name in `Transition.info` of the identity of the record that a transition was made from."""


@dataclass(kw_only=True, slots=True)
class NewRecords:
    """Yields the transitions of records that are one agent's own and new, and counts the others.

    A record counts as known only if a transition in the replay buffer was made from it. So a crash
    at any moment loses no record and doubles none.

    Args:
        agent_folder: The agent's folder, with its replay buffer in ``replay``.
        spec: Fields that the agent's transitions should have.
        agents: Names that mark a record as the agent's own, with ``*`` and ``?``, if it names an
            agent; empty for any.
    """

    agent_folder: Path
    spec: TransitionSpec
    agents: tuple[str, ...]
    report: SourceReport = field(default_factory=SourceReport)
    _known: set[str] | None = None
    _began_at_bytes: int = -1

    def begin(self) -> None:
        """Begin a reading with an empty report."""
        self._began_at_bytes = self._buffer_bytes()
        self.report = SourceReport()

    def end(self) -> bool:
        """End the reading; tell whether its transitions are in the agent's replay buffer.

        They are not if they were recorded elsewhere, as a measurement does.
        """
        began, self._began_at_bytes = self._began_at_bytes, -1
        elsewhere = self.report.transitions > 0 and self._buffer_bytes() <= began
        return began >= 0 and not elsewhere

    def decode_line(self, line: bytes, place: str, decode: Decode) -> Iterator[Transition]:
        """Yield the transitions of the records in *line*; refuse what is damaged."""
        for text in split_objects(line):
            try:
                record = decode(text)
            except ValueError as error:
                self.report.refuse(_kind_of(error), place)
                whole = whole_end(text, decode)
                if whole is None:
                    continue
                record, rest = whole
                yield from self.take(record, rest, place)
            else:
                yield from self.take(record, text, place)

    def take(self, record: DecodedRecord, text: bytes, place: str) -> Iterator[Transition]:
        """Yield the transitions of *record*, if they are this agent's and new."""
        if not self._is_own(record.agent):
            self.report.others[record.agent[:80]] += 1
            return
        content = b"id " + record.id.encode("utf-8", "replace") if record.id else b"line " + text
        identity = hashlib.blake2b(content, digest_size=8).hexdigest()
        known, is_new = self._known_records(), False
        for number, transition in enumerate(record.transitions):
            mark = f"{identity}/{number}" if number else identity
            if mark in known:
                continue
            known.add(mark)
            is_new = True
            self.report.transitions += 1
            if problem := transition_problem(self.spec, transition):
                reason = problem.partition(", got ")[0]
                self.report.misfits[reason] += 1
                self.report.first.setdefault(reason, place)
            yield replace(transition, info={**transition.info, RECORD_KEY: mark})
        self.report.records += is_new
        self.report.duplicates += not is_new and len(record.transitions) > 0

    def _is_own(self, agent: str) -> bool:
        """Whether a record that names *agent*, or none, may be this agent's."""
        if not agent or not self.agents or agent in self.agents:
            return True
        return any(fnmatch.fnmatchcase(agent, name) for name in self.agents)

    def _known_records(self) -> set[str]:
        """Identities of the records in the replay buffer; the first call reads it."""
        if self._known is None:
            buffer = ReplayBuffer(self.agent_folder / "replay")
            self._known = {str(transition.info.get(RECORD_KEY, "")) for transition in buffer.read()}
        return self._known

    def _buffer_bytes(self) -> int:
        return sum(ReplayBuffer(self.agent_folder / "replay").snapshot().lengths.values())


def _kind_of(error: ValueError) -> str:
    """What is equal in the same error of several lines: no value, and no column."""
    return str(error).partition(", got ")[0].partition(" at column ")[0][:200]
