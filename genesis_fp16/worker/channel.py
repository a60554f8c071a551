"""The worker's channel to its parent: commands in; progress, statistics and notices out."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, Literal

import structlog
from pydantic import ValidationError

from infrastructure.agent_contract.run_context import RunLogger
from infrastructure.events import COMMAND_ADAPTER, Command, EventWriter
from infrastructure.events.command import Lease, Stop
from infrastructure.events.event import (
    BaseEvent,
    BaselineCompared,
    Evaluated,
    LostUpdatesMeasured,
    MismatchMeasured,
    Notice,
    OverflowDiagnosed,
    Phase,
    Progress,
    StepStats,
)

Emit = Callable[[BaseEvent], None]

_EXPIRED_LEASE_SECONDS = 0.2  # for a later lease that waits in the pipe to be read
_LEASE = b'{"lease_until":'
_ORPHAN_SECONDS = 60.0
_ROOM_SECONDS = 0.2  # between two tries to write on a full disk; a flag change waits this long
_PROGRESS_SECONDS = 0.5
_NOTICE_SECONDS = 1.0  # between two notices of one event, after the first few
_FIRST_NOTICES = 10  # of one event that are sent at once
_STATISTICS_SECONDS = 1.0
_LONGEST_FIELD = 500


class PacedEvents:
    """Passes events on: `StepStats` and `Evaluated` at most once a second.

    Statistics in between are merged, so that no step is lost; of evaluations the last one is
    kept. Other events pass at once, after those held back; measurements, whose rates are limited
    elsewhere, pass without sending them. The end of the ``with`` block sends the rest. The *clock*
    returns monotonic seconds, here and below.
    """

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._stats: StepStats | None = None
        self._evaluated: Evaluated | None = None
        self._due = 0.0

    def __call__(self, event: BaseEvent) -> None:
        """Pass *event* on, or hold it back."""
        match event:
            case StepStats():
                self._stats = event if self._stats is None else self._stats.merged_with(event)
            case Evaluated():
                self._evaluated = event
            case (
                BaselineCompared()
                | MismatchMeasured()
                | LostUpdatesMeasured()
                | OverflowDiagnosed()
            ):
                self._emit(event)
                return
            case _:
                self.flush()
                self._emit(event)
                return
        if self._clock() >= self._due:
            self.flush()

    def __enter__(self) -> PacedEvents:
        return self

    def __exit__(self, *_error: object) -> None:
        self.flush()

    def flush(self) -> None:
        """Send the events held back."""
        for held in (self._stats, self._evaluated):
            if held is not None:
                self._emit(held)
                self._due = self._clock() + _STATISTICS_SECONDS
        self._stats = self._evaluated = None


class CommandInbox:
    """Commands that have arrived for one attempt.

    Args:
        events: Receives a notice about each line that is not a command. While too many events wait
            there for room on the disk, `drain` pauses the worker.
    """

    def __init__(self, events: EventWriter) -> None:
        self._events = events
        self._commands: SimpleQueue[Command] = SimpleQueue()

    def receive(self, line: bytes) -> None:
        """Add the command that *line* holds."""
        try:
            self.put(COMMAND_ADAPTER.validate_json(line))
        except ValidationError as error:
            fields = {"line": repr(line[:200]), "error": _first_error(error)}
            self._events(Notice(level="warning", event="command_rejected", fields=fields))

    def put(self, command: Command) -> None:
        """Add a command; safe in a signal handler."""
        self._commands.put(command)

    def drain(self) -> Iterator[Command]:
        """Yield the commands that have arrived since the last call.

        While the disk has no room for events, wait until all are written or a command arrives.
        """
        if self._events.is_crowded:
            self._pause()
        with suppress(Empty):
            while True:
                yield self._commands.get_nowait()

    def wait_until_written(self, *writers: EventWriter) -> bool:
        """Wait until all events of *writers* are on the disk; False if a stop comes first."""
        while not self._wait_for(lambda: all(writer.flush() for writer in writers)):
            if any(isinstance(command, Stop) for command in self.drain()):
                return False
        return True

    def _pause(self) -> None:
        begun = time.monotonic()
        sys.stderr.write(f"paused until events can be written: {self._events.error}\n")
        if self._wait_for(self._events.flush):
            seconds = f"{time.monotonic() - begun:.0f}"
            self._events(Notice(level="warning", event="pause_ended", fields={"seconds": seconds}))

    def _wait_for(self, holds: Callable[[], bool]) -> bool:
        """Wait until *holds* returns True or a command has arrived; return whether it holds."""
        while not (held := holds()) and self._commands.empty():
            time.sleep(_ROOM_SECONDS)
        return held


def take_stdin() -> int:
    """Reserve stdin for commands; return its new descriptor.

    Plugin code and the processes that it starts see an empty stdin.
    """
    descriptor = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return descriptor


def listen(descriptor: int, inbox: CommandInbox) -> None:
    """Let a thread read commands from *descriptor*; its end means that the daemon is gone."""
    arguments = (descriptor, inbox)
    threading.Thread(target=_read, args=arguments, name="commands", daemon=True).start()


def _read(descriptor: int, inbox: CommandInbox) -> None:
    with os.fdopen(descriptor, "rb") as lines:
        for line in lines:
            if line.startswith(_LEASE):
                _apply_lease(Lease.model_validate_json(line))
            else:
                inbox.receive(line)
    inbox.put(Stop(reason="the daemon is gone"))
    # The daemon that would kill a worker whose agent never yields is gone.
    time.sleep(_ORPHAN_SECONDS)
    sys.stderr.write(f"orphaned {_ORPHAN_SECONDS:g} s ago and still busy: exiting now\n")
    os._exit(os.EX_TEMPFAIL)


def _apply_lease(lease: Lease) -> None:
    """Let the kernel end this process when *lease* expires, unless a later one comes before."""
    seconds = max(_EXPIRED_LEASE_SECONDS, lease.lease_until - time.monotonic())
    signal.setitimer(signal.ITIMER_REAL, seconds)  # SIGALRM; nothing here handles it


class ProgressReporter:
    """Turns calls of any frequency into at most two events a second.

    Attributes:
        reports: Calls since the phase began.
    """

    def __init__(self, emit: Emit, clock: Callable[[], float] = time.monotonic) -> None:
        self._emit, self._clock = emit, clock
        self._phase: Phase = "collect"
        self._due = 0.0
        self._held: Progress | None = None
        self._unit: str | None = None
        self.reports = 0

    def begin(self, phase: Phase) -> None:
        """Send the report held back and start *phase*."""
        self.flush()
        self._phase, self._due, self.reports, self._unit = phase, 0.0, 0, None

    def __call__(
        self,
        done: int,
        total: int | None = None,
        *,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Report *done* of *total* units; see `infrastructure.agent_contract.RunContext`."""
        self.reports += 1
        try:
            self._held = Progress(
                phase=self._phase, done=done, total=total, unit=unit, metrics=metrics or {}
            )
        except ValidationError as error:  # a wrong number must not fail the run
            if self._clock() >= self._due:
                self._due = self._clock() + _PROGRESS_SECONDS
                fields = {"phase": self._phase, "error": _first_error(error)}
                self._emit(Notice(level="warning", event="progress_rejected", fields=fields))
            return
        if self._clock() >= self._due:
            self.flush()

    def prompt(
        self,
        done: int,
        total: int | None = None,
        *,
        unit: str = "",
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """As a call, but a report of another unit is sent at once: the next may take long."""
        if unit != self._unit:
            self._unit, self._due = unit, 0.0
        self(done, total, unit=unit, metrics=metrics)

    def flush(self) -> None:
        """Send the last report, if it was held back."""
        if self._held is not None:
            self._emit(self._held)
            self._held, self._due = None, self._clock() + _PROGRESS_SECONDS


def _first_error(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def configure_worker_logging() -> None:
    """Send everything that this process logs to stderr, which the parent keeps as worker.log."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s %(message)s")
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *_RENDERING],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )


def run_logger(emit: Emit, agent: str, run_id: str) -> RunLogger:
    """Make the logger of one run; lines go to worker.log and, as a `Notice`, to the daemon."""
    logger: RunLogger = structlog.wrap_logger(
        structlog.WriteLogger(sys.stderr),
        processors=[_NoticeSender(emit), *_RENDERING],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        agent=agent,
        run_id=run_id,
    )
    return logger


_RENDERING: list[structlog.typing.Processor] = [
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
    structlog.processors.KeyValueRenderer(key_order=["timestamp", "level", "event"]),
]


class _NoticeSender:
    """Emits log lines as notices: of each event a few at once, then one per second."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._used_until: dict[str, float] = {}  # the allowance of an event, in monotonic seconds
        self._suppressed: dict[str, int] = {}

    def __call__(
        self, _logger: object, method: str, fields: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event = str(fields["event"])
        now = time.monotonic()
        used_until = max(now, self._used_until.get(event, 0.0)) + _NOTICE_SECONDS
        if used_until > now + _FIRST_NOTICES * _NOTICE_SECONDS:
            self._suppressed[event] = self._suppressed.get(event, 0) + 1
            return fields
        self._used_until[event] = used_until
        texts = {
            name: str(value)[:_LONGEST_FIELD]
            for name, value in fields.items()
            if name not in ("event", "agent", "run_id")
        }
        if suppressed := self._suppressed.pop(event, 0):
            texts["suppressed"] = str(suppressed)
        level: Literal["info", "warning"] = "info" if method == "info" else "warning"
        self._emit(Notice(level=level, event=event, fields=texts))
        return fields
