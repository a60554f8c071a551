"""Reads what a run's workers have left in its folder: events and logs.

A worker may have replaced any of these files, so links are not followed and sizes are bounded.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import JsonValue

from genesis_fp16.api import views
from genesis_fp16.domain.attempt import Attempt, attempt_folder, events_path
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run_spec import LONGEST_SPEC, SPEC_FILE
from infrastructure.agent_contract.parts import MOST_PARTS
from infrastructure.events import EventTail
from infrastructure.events.event import MismatchMeasured, PartStats, StepStats
from infrastructure.events.plain_text import plain
from infrastructure.files import read_limited

CURVE_BYTES = 16 << 20  # of one attempt's events; of a longer file its newest quarter of that


class NoLogError(GenesisError, LookupError):
    """The attempt has no log that can be read."""


def event_id(attempt: int, offset: int) -> str:
    """Name of the place behind an event: the attempt, and the offset in its file."""
    return f"{attempt}:{offset}"


def read_curve(home: Path, run_id: str, attempts: Sequence[Attempt], most: int) -> views.RunCurve:
    """The statistics of all *attempts*, oldest first, merged into at most *most* points."""
    merged: list[StepStats] = []
    skipped, place = 0, event_id(0, 0)
    for attempt in attempts:
        tail = EventTail(events_path(home, attempt), longest_backlog=CURVE_BYTES)
        try:
            for event in tail.read():
                if isinstance(event, StepStats):
                    merged.append(event)
                    if len(merged) >= 4 * most:
                        merged = _thinned(merged, 2 * most)
        except OSError:
            pass  # the run's own view says why
        skipped += tail.skipped_bytes
        place = event_id(attempt.number, tail.offset)
    points = [curve_point(stats) for stats in _thinned(merged, most)]
    return views.RunCurve(run=run_id, points=points, last_event_id=place, skipped_bytes=skipped)


def read_spec(home: Path, attempts: Sequence[Attempt]) -> dict[str, JsonValue]:
    """The specification of the newest of *attempts* that still has one; empty if none has."""
    for attempt in reversed(attempts):
        path = attempt_folder(home, attempt) / SPEC_FILE
        try:
            content = json.loads(read_limited(path, LONGEST_SPEC))
        except (OSError, ValueError, RecursionError):
            continue
        if isinstance(content, dict):
            return content
    return {}


def curve_point(stats: StepStats) -> views.CurvePoint:
    """The point of a curve for *stats*."""
    return views.CurvePoint(
        time=stats.time,
        step=stats.step,
        steps=stats.attempted,
        overflows=stats.overflow,
        nonfinite_losses=stats.nonfinite_loss,
        loss=stats.loss,
        grad_norm=stats.grad_norm,
        loss_scale=stats.loss_scale,
        precision=stats.precision,
        samples=stats.samples,
        seconds=stats.seconds,
        parts=[_part_point(part) for part in stats.parts[:MOST_PARTS]],
    )


def _part_point(part: PartStats) -> views.PartPoint:
    return views.PartPoint(
        name=part.name,
        steps=part.attempted,
        overflows=part.overflow,
        nonfinite_losses=part.nonfinite_loss,
        loss=part.loss,
        grad_norm=part.grad_norm,
        loss_scale=part.loss_scale,
    )


def read_mismatches(
    home: Path, attempts: Sequence[Attempt], longest: int
) -> Iterator[views.MismatchPoint]:
    """Comparisons of trainer and rollout in *attempts*, oldest first."""
    for attempt in attempts:
        tail = EventTail(events_path(home, attempt), longest_backlog=longest)
        try:
            for event in tail.read():
                if isinstance(event, MismatchMeasured):
                    yield views.MismatchPoint(
                        run=attempt.run_id,
                        time=event.time,
                        step=event.step,
                        round=event.round,
                        report=event.report.model_dump(mode="json"),
                    )
        except OSError:
            continue


def read_log_tail(home: Path, attempt: Attempt, most_bytes: int) -> views.LogTail:
    """The last *most_bytes* of the attempt's log, as text without control characters.

    Raises:
        NoLogError: It is missing, or not a regular file.
    """
    path = attempt_folder(home, attempt) / "worker.log"
    what = f"the log of attempt {attempt.number} of run {attempt.run_id}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise NoLogError(f"{what} is not there: it was removed, or not begun") from None
    except OSError as error:
        raise NoLogError(f"{what} cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise NoLogError(f"{what} is not a regular file, and is not read")
        start = max(0, status.st_size - most_bytes)
        content = os.pread(descriptor, most_bytes, start)
    finally:
        os.close(descriptor)
    text = content.decode(errors="replace")
    return views.LogTail(
        run=attempt.run_id,
        attempt=attempt.number,
        text=plain(text, longest=len(text) + 1),
        skipped_bytes=start,
        size_bytes=status.st_size,
    )


def _thinned(stats: list[StepStats], most: int) -> list[StepStats]:
    """Merge neighbours until at most *most* are left."""
    while len(stats) > most:
        merged = [
            first.merged_with(second)
            for first, second in zip(stats[::2], stats[1::2], strict=False)
        ]
        stats = merged + stats[2 * len(merged) :]
    return stats
