"""A run that has ended as a trace: its attempts, their phases, and what happened in them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes import error_attributes, exception_attributes
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.guard import Decision
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.domain.telemetry import span_id, trace_id
from infrastructure.events import Event as WorkerEvent
from infrastructure.events import event, read_events

_GOOD = (RunState.SUCCEEDED, RunState.NO_DATA, RunState.CANCELLED)
EVALUATIONS = 100  # the newest of an attempt
Value = str | bool | int | float


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRun:
    """A run that has ended, its attempts in order, and the guard's decisions of its agent."""

    run: Run
    attempts: Sequence[Attempt]
    decisions: Sequence[Decision]


@dataclass(slots=True)
class _Span:
    """A part of the run between two Unix times; *parent* names the part that it belongs to."""

    place: str
    name: str
    start: float
    end: float
    parent: str | None = "run"
    attributes: dict[str, Value | None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    error: str = ""
    error_type: str = ""

    def add(self, name: str, at: float, **attributes: Value | None) -> None:
        self.events.append(Event(name, _known(attributes), round(at * 1e9), limit=None))


def spans_of(
    ended: EndedRun, home: Path, resource: Resource, scope: InstrumentationScope
) -> list[ReadableSpan]:
    """The trace of a run: one span for the run, its waiting, each attempt, phase and evaluation.

    A span has the events that the worker has reported in it, in the order of time, but for steps,
    progress and measurements, which are metrics; at most as many as the SDK's limit, the last ones.
    """
    run = ended.run
    most = SpanLimits().max_events  # OTEL_SPAN_EVENT_COUNT_LIMIT; None: no limit
    made = []
    for span in _parts(ended, home):
        context = _context(run.id, span.place)
        parent = None if span.parent is None else _context(run.id, span.parent)
        shared = {"genesis.agent": run.agent, "genesis.run.id": run.id}
        attributes = {**shared, **_known(span.attributes)}
        if span.error_type:
            attributes[error_attributes.ERROR_TYPE] = span.error_type
        status = Status(StatusCode.ERROR, span.error) if span.error_type else Status()
        made.append(
            ReadableSpan(
                name=span.name,
                context=context,
                parent=parent,
                resource=resource,
                attributes=attributes,
                events=span.events[-most:] if most else span.events,
                status=status,
                start_time=round(span.start * 1e9),
                end_time=round(max(span.end, span.start) * 1e9),
                instrumentation_scope=scope,
            )
        )
    return made


def _parts(ended: EndedRun, home: Path) -> Iterator[_Span]:
    run = ended.run
    end = run.finished_at or run.created_at
    whole = _Span(
        place="run",
        name=f"run {run.agent}",
        start=min(run.due_at, run.created_at),
        end=end,
        parent=None,
        attributes={
            "genesis.run.number": run.number,
            "genesis.run.trigger": run.trigger,
            "genesis.run.state": run.state.value,
            "genesis.run.attempts": len(ended.attempts),
            "genesis.run.steps": run.steps,
            "genesis.run.fp16_steps": run.fp16_steps,
            "genesis.run.overflows": run.overflows,
            "genesis.run.published": run.published,
            "genesis.run.reason": run.reason,
            **{f"genesis.precision.{name}": text for name, text in (run.precision or {}).items()},
        },
    )
    if run.state not in _GOOD:
        whole.error, whole.error_type = run.error or "", run.state.value
        whole.add("exception", end, **{exception_attributes.EXCEPTION_MESSAGE: whole.error})
    whole.add("due", run.due_at)
    for decision in ended.decisions:
        if decision.run_id == run.id:
            whole.add(
                f"guard_{decision.state.value}",
                decision.at,
                **{"genesis.step": decision.step, "genesis.reason": decision.reason},
            )
    waits_from = run.created_at
    parts: list[_Span] = []
    for attempt in ended.attempts:
        number = attempt.number
        parts.append(
            _Span(
                place=f"queued {number}",
                name="queued",
                start=waits_from,
                end=attempt.started_at,
            )
        )
        waits_from = end if attempt.finished_at is None else attempt.finished_at
        parts += _attempt(attempt, home, waits_from)
    if not ended.attempts:
        parts.append(_Span(place="queued 1", name="queued", start=waits_from, end=end))
    whole.events.sort(key=lambda each: each.timestamp)
    yield whole
    yield from parts


def _attempt(attempt: Attempt, home: Path, end: float) -> list[_Span]:
    place = f"attempt {attempt.number}"
    whole = _Span(
        place=place,
        name=place,
        start=attempt.started_at,
        end=end,
        attributes={
            "genesis.attempt.number": attempt.number,
            "genesis.attempt.ending": attempt.ending,
            "genesis.attempt.exit_code": attempt.exit_code,
            "genesis.attempt.signal": attempt.signal,
            "genesis.attempt.job": attempt.job,
            "genesis.attempt.waited_seconds": attempt.waited_seconds,
            "process.pid": attempt.pid,
        },
    )
    if attempt.error:
        whole.error, whole.error_type = attempt.error, attempt.ending or "ended"
        whole.add("exception", end, **{exception_attributes.EXCEPTION_MESSAGE: attempt.error})
    open_phase = _Span(
        place=f"{place}/start", name="start", start=whole.start, end=end, parent=place
    )
    phases = [open_phase]
    evaluations: deque[_Span] = deque(maxlen=EVALUATIONS)
    half = False
    with suppress(OSError):  # retention has removed it: the store has the rest
        for received in read_events(events_path(home, attempt)):
            if isinstance(received, event.PhaseStarted):
                open_phase.end = received.time
                open_phase = _Span(
                    place=f"{place}/{len(phases)} {received.phase}",
                    name=received.phase,
                    start=received.time,
                    end=end,
                    parent=place,
                )
                phases.append(open_phase)
                continue
            if isinstance(received, event.PrecisionChanged):
                lowered = half and received.state.effective == "fp32"
                half = received.state.effective != "fp32"
                name = "rollback" if lowered else "precision_changed"
                fields: dict[str, Value | None] = {"genesis.step": received.step}
                fields |= {f"genesis.precision.{n}": t for n, t in received.state.fields.items()}
                open_phase.add(name, received.time, **fields)
                continue
            if isinstance(received, event.Evaluated) and received.began_at is not None:
                evaluations.append(_evaluation(received, received.began_at, open_phase))
                continue
            if (told := _told(received)) is not None:
                open_phase.add(told[0], received.time, **told[1])
    return [whole, *phases, *evaluations]


def _evaluation(received: event.Evaluated, began_at: float, phase: _Span) -> _Span:
    measured = {f"genesis.metric.{metric}": value for metric, value in received.metrics.items()}
    return _Span(
        place=f"{phase.place}/evaluate at {began_at}",
        name="evaluate",
        start=began_at,
        end=began_at + received.seconds,
        parent=phase.place,
        attributes={"genesis.epoch": received.epoch, **measured},
    )


def _told(received: WorkerEvent) -> tuple[str, Mapping[str, Value | None]] | None:
    """Name and attributes of what a phase shows of an event; None if it is a metric's."""
    fields: dict[str, Value | None]
    match received:
        case event.Started(device=device, torch_version=torch):
            name, fields = "worker_started", {"genesis.device": device, "genesis.torch": torch}
        case event.CheckpointSaved(step=step, size_bytes=size):
            name, fields = "checkpoint_saved", {"genesis.step": step, "genesis.bytes": size}
        case event.Resumed(step=step):
            name, fields = "resumed", {"genesis.step": step}
        case event.Evaluated(epoch=epoch, metrics=metrics):  # of an earlier release
            name, fields = "evaluated", {"genesis.epoch": epoch}
            fields |= {f"genesis.metric.{metric}": value for metric, value in metrics.items()}
        case event.Published(published=published, reason=reason):
            name = "model_published" if published else "model_not_published"
            fields = {"genesis.reason": reason}
        case event.OverflowDiagnosed(step=step, cause=cause, module=module):
            name, fields = "overflow_diagnosed", {"genesis.step": step, "genesis.cause": cause}
            fields["genesis.module"] = module
        case event.Notice(event=name):
            fields = dict(received.fields)
        case event.Finished(outcome=outcome):
            name, fields = "worker_finished", {"genesis.outcome": outcome}
        case _:
            return None
    return name, fields


def _context(run_id: str, place: str) -> SpanContext:
    return SpanContext(
        trace_id(run_id), span_id(run_id, place), False, TraceFlags(TraceFlags.SAMPLED)
    )


def _known(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value is not None}
