"""Lines of the daemon's log as OpenTelemetry's records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.context import Context
from opentelemetry.sdk._logs import ReadableLogRecord
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes import exception_attributes
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    set_span_in_context,
)

from genesis_fp16.domain.telemetry import span_id, trace_id
from genesis_fp16.telemetry.position import Position
from infrastructure.events.plain_text import plain

MOST_BYTES = 1 << 20  # of one export
LONGEST_TRACE = 20_000  # characters of a traceback
_HEAD_BYTES = 30
_INT64 = 1 << 63
_LATEST = 1e10  # Unix time that fits into the protocol's 64 bits of nanoseconds
_SEVERITY = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}
_NAMES = {"agent": "genesis.agent", "run_id": "genesis.run.id"}


class Lines(NamedTuple):
    """Whole lines of the log, and where the next ones begin; *lost* if a file was skipped."""

    lines: list[bytes]
    head: str
    offset: int
    lost: bool = False


def read_lines(path: Path, position: Position) -> Lines:
    """Read what follows *position*: of the file that was turned over, then of *path*."""
    old = path.with_name(path.name + ".1")
    current, before = _head(path), _head(old)
    if position.log_head == current:
        return _read(path, current, position.log_offset)
    if position.log_head == before:
        rest = _read(old, before, position.log_offset)
        return rest if rest.lines or not current else _read(path, current, 0)
    first = _read(old, before, 0) if before else _read(path, current, 0)
    return first._replace(lost=bool(position.log_head))


def record_of(line: bytes, resource: Resource, scope: InstrumentationScope) -> ReadableLogRecord:
    """The record of one line; any other text than a JSON object is the record itself."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        fields = {"event": line.decode(errors="replace")}
    seconds = fields.pop("time", 0.0)
    known = isinstance(seconds, int | float) and 0.0 <= seconds < _LATEST
    at = round(seconds * 1e9) if known else 0
    level, event = (plain(str(fields.pop(name, ""))) for name in ("level", "event"))
    run_id = fields.get("run_id")
    exception = fields.pop("exception", None)
    attributes = _attributes(fields)
    if exception is not None:
        attributes[exception_attributes.EXCEPTION_STACKTRACE] = plain(str(exception), LONGEST_TRACE)
    of_run = Context()
    if isinstance(run_id, str) and run_id.isascii():
        flags = TraceFlags(TraceFlags.SAMPLED)
        span = SpanContext(trace_id(run_id), span_id(run_id), is_remote=False, trace_flags=flags)
        of_run = set_span_in_context(NonRecordingSpan(span), of_run)
    record = LogRecord(
        timestamp=at,
        observed_timestamp=at,
        context=of_run,
        severity_text=level.upper(),
        severity_number=_SEVERITY.get(level, SeverityNumber.UNSPECIFIED),
        body=event,
        attributes=attributes,
        event_name=f"genesis.{event}" if event.isidentifier() else None,
    )
    return ReadableLogRecord(record, resource, scope)


def _attributes(fields: Mapping[str, object]) -> dict[str, str | bool | int | float]:
    found: dict[str, str | bool | int | float] = {}
    for name, value in fields.items():
        if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < _INT64):
            found[_NAMES.get(name, name)] = value
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value)
            found[_NAMES.get(name, name)] = plain(text)  # JSON may name half of a character
    return {plain(name): value for name, value in found.items()}


def _head(path: Path) -> str:
    """Begin of the file, with the time of its first line: an inode would be used again."""
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""


def _read(path: Path, head: str, offset: int) -> Lines:
    try:
        with path.open("rb") as file:
            if file.read(_HEAD_BYTES).decode(errors="replace") != head:  # turned over just now
                return Lines([], head, offset)
            file.seek(offset)
            text = file.read(MOST_BYTES)
    except FileNotFoundError:
        return Lines([], head, offset)
    whole, found, _ = text.rpartition(b"\n")
    if not found and len(text) == MOST_BYTES:  # a line longer than an export: skip its part
        return Lines([], head, offset + len(text))
    return Lines(whole.split(b"\n") if whole else [], head, offset + len(whole) + len(found))
