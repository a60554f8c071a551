"""What each agent's clients have been acknowledged, by id: each decision and report counts once.

An agent's ids are read from its log when they are first needed. Records that wait are written
together, and flushed once a batch and agent, in a thread.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from genesis_fp16.predictor.problems import ProblemError
from infrastructure.decisions import (
    LOG_FOLDER,
    DecisionLog,
    LogRecord,
    LogWriteError,
    Place,
    content_hash,
    read_records,
)
from infrastructure.decisions.log import segment_path, segments
from infrastructure.decisions.records import BEGINNING, DamagedLineError
from infrastructure.decisions.removal import removed_at

MOST_IDS = 100_000  # of one agent; the oldest are forgotten
MOST_IDS_IN_ALL = 200_000  # the journals least recently used are closed
_READ_BYTES = 64 << 20  # of the log's end, in which ids are looked for
_RETRY_AFTER = {"Retry-After": "5"}

State = Literal["open", "partial", "recorded", "late"]


@dataclass(slots=True)
class _Known:
    """A decision or choice that was recorded, or is being recorded.

    Attributes:
        content: Hash of what the client sent.
        kind: ``decision`` or ``choice``.
        place: Its record.
        deadline: Unix time until which its outcome counts.
        state: What is known of its outcome.
        report: Id of the last report, if it had one, and hash of its content.
        fields: Fields of the outcome that were reported.
    """

    content: str
    kind: str
    place: Place
    deadline: float
    state: State = "open"
    report: tuple[str | None, str] | None = None
    fields: Mapping[str, Any] | None = None


class Journal:
    """What one agent's clients were acknowledged. Methods run in the event loop.

    Args:
        folder: Folder of the agent's log.
        commit: Writes records durably and returns their places.
        outcome_seconds: Time after a decision in which its outcome counts as the decision's.
        clock: Unix time in seconds.
        came_true: Called with each transition, and each outcome that counts, once it is recorded.

    Attributes:
        log: The agent's log.
        users: Number of requests that use this journal now.
    """

    def __init__(
        self,
        folder: Path,
        commit: Callable[[DecisionLog, Sequence[LogRecord]], asyncio.Future[list[Place]]],
        outcome_seconds: float,
        clock: Callable[[], float],
        came_true: Callable[[LogRecord], None] = lambda _record: None,
    ) -> None:
        self.log, self._commit, self._came_true = DecisionLog(folder), commit, came_true
        self._outcome_seconds, self._clock = outcome_seconds, clock
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._transitions: OrderedDict[str, str] = OrderedDict()
        self._turn = asyncio.Lock()  # of requests that add transitions
        self._under_way: dict[str, _Alone] = {}
        self._removed_at = removed_at(folder)
        self.users = 0

    def __len__(self) -> int:
        """Number of ids in memory."""
        return len(self._known) + len(self._transitions)

    def read(self) -> None:
        """Read the ids at the end of the log; to be called once, in any thread.

        Raises:
            OSError: The log cannot be opened or read.
        """
        if not segments(self.log.folder):
            return
        self.log.open()
        for place, _, record in read_records(self.log.folder, _start(self.log.folder)):
            self._note(record, place)

    async def decide(
        self, name: str, content: str, make: Callable[[], Awaitable[LogRecord]]
    ) -> tuple[dict[str, Any], bool]:
        """The answer to a decision, new or repeated, and whether it is repeated.

        Raises:
            ProblemError: The id was used with other content, or the disk fails.
        """
        async with self._alone(name):
            known = self._find(name)
            if known is not None:
                self._check_same(name, known.content, content)
                answer: dict[str, Any] = self.log.read(known.place)["answer"]
                return answer, True
            record = {"kind": "decision", "id": name, "content": content, **await make()}
            record["deadline"] = record["answer"]["deadline"] = self._deadline()
            await self._record([record])
            return record["answer"], False

    async def choose(self, choices: Sequence[LogRecord]) -> int:
        """Record choices that clients made by themselves; return how many were new.

        A choice with the id of a decision whose outcome is not known takes its place: what the
        client did is what happened.

        Raises:
            ProblemError: An id was used with other content, or the disk fails; none is recorded.
        """
        async with AsyncExitStack() as stack:
            for name in sorted({choice["id"] for choice in choices}):  # one order: no deadlock
                await stack.enter_async_context(self._alone(name))
            new = OrderedDict[str, LogRecord]()
            for choice in choices:
                name, known = choice["id"], self._find(choice["id"])
                if earlier := new.get(name):
                    self._check_same(name, earlier["content"], choice["content"])
                elif known is None or (known.kind == "decision" and known.state == "open"):
                    new[name] = {"kind": "choice", **choice, "deadline": self._deadline()}
                else:
                    self._check_same(name, known.content, choice["content"])
            await self._record(list(new.values()))
            return len(new)

    async def report(self, name: str, report: str | None, fields: dict[str, Any]) -> str:
        """Record what came of the decision *name*; return the state to answer.

        Args:
            report: Id of the report, if it has one.
            fields: Fields of the outcome that are known; ``final`` tells whether others follow.

        Raises:
            ProblemError: The decision is not known, has another outcome already, or a partial one
                and its deadline has passed; or the disk fails.
        """
        async with self._alone(name):
            known = self._find(name)
            if known is None:
                raise ProblemError(
                    404,
                    f"no decision {name!r} is known among the last {MOST_IDS}: use the id that the "
                    "answer to /decisions had, or send the choice to /choices first",
                    field="decision",
                )
            this = (report, content_hash(fields))
            if known.report is not None:
                if this == known.report:
                    return "repeated"
                if report is not None and report == known.report[0]:
                    raise _conflict(f"report {report!r}")
            final = fields["final"]
            if known.state in ("recorded", "late"):
                if known.report is not None and this[1] == known.report[1]:
                    return "repeated"
                raise ProblemError(
                    409, f"the outcome of decision {name!r} is known already, and it is another one"
                )
            now, state = self._clock(), "recorded" if final else "partial"
            late = now > known.deadline
            if late and known.state == "partial":
                raise ProblemError(
                    409,
                    f"this comes too late for decision {name!r}: what was reported of it before "
                    "its deadline counts as its outcome. Report all of an outcome within "
                    "GENESIS_PREDICT_OUTCOME_SECONDS",
                )
            earlier, given = known.fields or {}, _given(fields)
            merged = {**earlier, **given}
            if "next_observation" in merged:
                seen = earlier.get("next_observation", {})
                merged["next_observation"] = seen | given.get("next_observation", {})
            record = {
                "kind": "outcome",
                "id": name,
                "at": now,
                "content": this[1],
                "report": report,
                "of": known.place,
                "deadline": known.deadline,
                "state": "late" if late else state,
                **merged,
            }
            await self._record([record])
            return str(record["state"])

    async def add(self, transitions: Sequence[LogRecord]) -> int:
        """Record transitions; return how many were new.

        Raises:
            ProblemError: An id was used with other content, or the disk fails; none is recorded.
        """
        async with self._turn:
            new = OrderedDict[str, LogRecord]()
            for transition in transitions:
                name, content = transition["id"], transition["content"]
                known = self._transitions.get(name)
                if known is None and name in new:
                    known = new[name]["content"]
                if known is None:
                    new[name] = {"kind": "transition", "at": self._clock(), **transition}
                else:
                    self._check_same(name, known, content)
            await self._record(list(new.values()))
            return len(new)

    def _find(self, name: str) -> _Known | None:
        """What is known of a decision; None if it is unknown, or was removed."""
        known = self._known.get(name)
        if known is None or removed_at(self.log.folder) == self._removed_at:
            return known
        try:
            self.log.read(known.place)
        except (OSError, DamagedLineError):
            del self._known[name]
            return None
        return known

    @asynccontextmanager
    async def _alone(self, name: str) -> AsyncIterator[None]:
        """Let other requests of the id *name* wait."""
        turns = self._under_way.setdefault(name, _Alone())
        turns.users += 1
        try:
            async with turns.lock:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._under_way[name]

    async def _record(self, records: list[LogRecord]) -> None:
        if not records:
            return
        try:
            places = await self._commit(self.log, records)
        except LogWriteError as error:
            raise ProblemError(503, str(error), headers=_RETRY_AFTER) from error
        for place, record in zip(places, records, strict=True):
            self._note(record, place)
            if record["kind"] == "transition" or record.get("state") == "recorded":
                self._came_true(record)

    def _note(self, record: LogRecord, place: Place) -> None:
        kind, name = record["kind"], record["id"]
        if kind == "transition":
            self._transitions[name] = record["content"]
            if len(self._transitions) > MOST_IDS:
                self._transitions.popitem(last=False)
        elif kind == "outcome":
            known = self._known.get(name)
            if known is not None:
                known.state = record["state"]
                known.report = (record["report"], record["content"])
                known.fields = _given(record) if known.state == "partial" else None
        else:
            self._known[name] = _Known(record["content"], kind, place, record["deadline"])
            if len(self._known) > MOST_IDS:
                self._known.popitem(last=False)

    def _deadline(self) -> float:
        return self._clock() + self._outcome_seconds

    def _check_same(self, name: str, known: str, content: str) -> None:
        if known != content:
            raise _conflict(f"id {name!r}")


@dataclass(slots=True)
class _Alone:
    """Lock of an id, and the number of requests that have or await it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Journals:
    """The journals of all agents, and the thread that writes their logs.

    Args:
        home: GENESIS_HOME.
        outcome_seconds: See `Journal`.
        clock: Unix time in seconds.
        came_true: Called with the agent, the folder of its log, and each transition or outcome
            that was recorded and counts.
    """

    def __init__(
        self,
        home: Path,
        outcome_seconds: float,
        clock: Callable[[], float] = time.time,
        came_true: Callable[[str, Path, LogRecord], None] = lambda _agent, _log, _record: None,
    ) -> None:
        self._came_true = came_true
        self._agents, self._outcome_seconds, self._clock = home / "agents", outcome_seconds, clock
        self._open: OrderedDict[str, Journal] = OrderedDict()
        self._opening: dict[str, asyncio.Task[None]] = {}
        self._waiting: list[_Batch] = []
        self._writing: asyncio.Task[None] | None = None
        self._writer, self._reader = ThreadPoolExecutor(1, "log"), ThreadPoolExecutor(1, "ids")

    @asynccontextmanager
    async def of(self, agent: str) -> AsyncIterator[Journal]:
        """Use the journal of *agent* in the block.

        Raises:
            ProblemError: Its log cannot be read.
        """
        while (journal := self._open.get(agent)) is None:
            await self._opened(agent)
        self._open.move_to_end(agent)
        journal.users += 1
        try:
            yield journal
        finally:
            journal.users -= 1

    async def _opened(self, agent: str) -> None:
        opening = self._opening.get(agent)
        if opening is None:
            opening = asyncio.create_task(self._open_journal(agent))
            self._opening[agent] = opening
            opening.add_done_callback(lambda _: self._opening.pop(agent))
        try:
            await asyncio.shield(opening)
        except OSError as error:
            detail = f"the decisions of {agent} cannot be read: {error}"
            raise ProblemError(503, detail, headers=_RETRY_AFTER) from error

    def close(self) -> None:
        """Write what waits, and close all logs."""
        self._writer.shutdown()
        self._reader.shutdown()
        for journal in self._open.values():
            journal.log.close()

    async def _open_journal(self, agent: str) -> None:
        folder = self._agents / agent / LOG_FOLDER
        came_true = partial(self._came_true, agent, folder)
        journal = Journal(folder, self._commit, self._outcome_seconds, self._clock, came_true)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._reader, journal.read)
        self._open[agent] = journal
        self._make_room(journal)

    def _make_room(self, wanted: Journal) -> None:
        total = sum(map(len, self._open.values()))
        for agent, journal in list(self._open.items()):
            if total <= MOST_IDS_IN_ALL:
                return
            if journal is not wanted and not journal.users:
                total -= len(journal)
                journal.log.close()
                del self._open[agent]

    def _commit(
        self, log: DecisionLog, records: Sequence[LogRecord]
    ) -> asyncio.Future[list[Place]]:
        done: asyncio.Future[list[Place]] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Batch(log, records, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        return done

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batches, self._waiting = self._waiting, []
            results = await loop.run_in_executor(self._writer, _write, batches)
            for batch, result in zip(batches, results, strict=True):
                if batch.done.cancelled():
                    continue
                if isinstance(result, LogWriteError):
                    batch.done.set_exception(result)
                else:
                    batch.done.set_result(result)
        self._writing = None


@dataclass(frozen=True, slots=True)
class _Batch:
    log: DecisionLog
    records: Sequence[LogRecord]
    done: asyncio.Future[list[Place]]


def _write(batches: Sequence[_Batch]) -> list[list[Place] | LogWriteError]:
    """Write the records of all *batches*, those of one log together."""
    by_log: dict[int, list[int]] = {}
    for position, batch in enumerate(batches):
        by_log.setdefault(id(batch.log), []).append(position)
    results: list[list[Place] | LogWriteError] = [[] for _ in batches]
    for positions in by_log.values():
        records = [record for position in positions for record in batches[position].records]
        try:
            places = batches[positions[0]].log.append(records)
        except LogWriteError as error:
            for position in positions:
                results[position] = error
            continue
        for position in positions:
            count = len(batches[position].records)
            results[position], places = places[:count], places[count:]
    return results


def _start(folder: Path) -> Place:
    """Where the last `_READ_BYTES` of the log begin, at the beginning of a segment."""
    total, start = 0, BEGINNING
    for number in reversed(segments(folder)):
        start = Place(number, 0)
        total += segment_path(folder, number).stat().st_size
        if total > _READ_BYTES:
            break
    return start


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an outcome that are not None."""
    names = ("next_observation", "reward", "terminated", "error")
    return {name: fields[name] for name in names if fields.get(name) is not None}


def _conflict(what: str) -> ProblemError:
    return ProblemError(409, f"{what} was used before with other content: choose another one")
