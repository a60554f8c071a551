"""What the daemon tells the exporter of telemetry, what that reports, and the ids of traces."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.predictor import Notice

FOLDER = "telemetry"
"""In the home: the log that waits for its export, and how far each export has come."""

LOG_FILE = "log.ndjson"


def trace_id(run_id: str) -> int:
    """Trace of a run, 128 bits: the same in each process, so that nothing has to carry it."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:16]) or 1


def span_id(run_id: str, place: str = "run") -> int:
    """Span of a run at *place*, 64 bits, such as ``attempt 2/train``; by default the whole run."""
    return int.from_bytes(sha256(f"{run_id}/{place}".encode()).digest()[:8]) or 1


def exemplar_of(run_id: str) -> dict[str, str]:
    """Labels of an exemplar, by which a metric leads to the run and its trace."""
    return {"run_id": run_id, "trace_id": f"{trace_id(run_id):032x}"}


class TelemetrySpec(BaseModel):
    """What the exporter begins with; the first line of its standard input.

    Attributes:
        parent: Process id of the daemon, with which it ends.
        home: GENESIS_HOME.
        database_url: As in the settings; None for SQLite in the home.
        metrics_url: Where the daemon's metrics are read.
        started_at: Unix time in seconds at which the daemon's counters began.
        release: Version of the daemon.
    """

    model_config = ConfigDict(frozen=True)
    parent: int
    home: Path
    database_url: str | None = Field(default=None, repr=False)
    metrics_url: str
    started_at: float
    release: str


class TelemetryReport(BaseModel):
    """What the exporter reports, at least once between two exports; a line of its output.

    Attributes:
        notices: What the daemon's log should show.
    """

    notices: list[Notice] = []
