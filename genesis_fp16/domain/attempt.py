"""One attempt of a run: its record, and the folder of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One worker of a run; see `schema.attempts` for the columns."""

    run_id: str
    number: int
    incarnation: str
    started_at: float
    pid: int | None = None
    pid_started_at: float | None = None
    finished_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    ending: str | None = None
    error: str | None = None
    events_offset: int = 0
    job: str | None = None
    waiting: str | None = None
    waited_seconds: float = 0.0


def attempt_folder(home: Path, attempt: Attempt) -> Path:
    """Absolute folder of the attempt's specification, events and log, below *home*."""
    return home.absolute() / "runs" / attempt.run_id / "attempts" / str(attempt.number)


def events_path(home: Path, attempt: Attempt) -> Path:
    """Where the attempt's worker appends its events."""
    return attempt_folder(home, attempt) / "events.ndjson"
