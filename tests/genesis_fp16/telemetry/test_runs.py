"""A run that was rolled back and preempted, as a trace."""

from pathlib import Path

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import StatusCode

from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.telemetry.runs import EndedRun, spans_of
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import (
    CheckpointSaved,
    Evaluated,
    PhaseStarted,
    PrecisionChanged,
    Resumed,
)


def test_attempts_rollbacks_and_checkpoints_are_where_they_happened(tmp_path: Path) -> None:
    run = Run(
        id="r1",
        agent="oak",
        number=1,
        trigger="schedule",
        state=RunState.CRASHED,
        seed=1,
        due_at=100.0,
        created_at=101.0,
        available_at=101.0,
        finished_at=140.0,
        error="it crashed",
    )
    attempts = [
        Attempt(run_id="r1", number=1, incarnation="a", started_at=105.0, finished_at=110.0),
        Attempt(
            run_id="r1",
            number=2,
            incarnation="b",
            started_at=120.0,
            finished_at=140.0,
            error="died",
        ),
    ]
    half = PrecisionState(requested="fp16", effective="fp16", reason="default")
    full = PrecisionState(requested="fp16", effective="fp32", reason="guard")
    times = iter((106.0, 107.0, 108.0, 109.0, 109.9, 125.0, 130.0))
    for attempt, events in zip(
        attempts,
        (
            [
                PhaseStarted(phase="train"),
                PrecisionChanged(step=0, state=half, loss_scale=2.0),
                PrecisionChanged(step=5, state=full, loss_scale=1.0),
                CheckpointSaved(step=6, path="x", size_bytes=1, seconds=0.1),
                Evaluated(
                    epoch=1, metrics={"mse": 0.5}, primary="mse", began_at=109.2, seconds=0.5
                ),
            ],
            [Resumed(step=6, path="x"), PhaseStarted(phase="train")],
        ),
        strict=True,
    ):
        path = events_path(tmp_path, attempt)
        path.parent.mkdir(parents=True)
        with EventWriter(path, clock=lambda: next(times)) as write:
            for event in events:
                write(event)
    tripped = Decision(agent="oak", at=107.5, state=GuardState.TRIPPED, run_id="r1", reason="storm")
    ended = EndedRun(run=run, attempts=attempts, decisions=[tripped])
    spans = spans_of(ended, tmp_path, Resource({}), InstrumentationScope("test"))
    seconds = {
        (span.name, span.start_time // 10**9, span.end_time // 10**9)
        for span in spans
        if span.start_time is not None and span.end_time is not None
    }
    assert seconds == {
        ("run oak", 100, 140),
        ("queued", 101, 105),
        ("attempt 1", 105, 110),
        ("start", 105, 106),
        ("train", 106, 110),
        ("evaluate", 109, 109),
        ("queued", 110, 120),
        ("attempt 2", 120, 140),
        ("start", 120, 130),
        ("train", 130, 140),
    }
    events_of = {
        (span.name, event.name): event.timestamp // 10**9 for span in spans for event in span.events
    }
    assert events_of["run oak", "guard_tripped"] == 107
    assert events_of["train", "rollback"] == 108
    assert events_of["train", "checkpoint_saved"] == 109
    assert events_of["start", "resumed"] == 125
    assert [span.name for span in spans if span.status.status_code is StatusCode.ERROR] == [
        "run oak",
        "attempt 2",
    ]
    assert spans[0].attributes is not None
    assert spans[0].attributes["error.type"] == "crashed"
    ids = [span.context.span_id for span in spans]
    assert len(set(ids)) == len(ids)
