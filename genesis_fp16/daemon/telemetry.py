"""The process that exports telemetry, and the copy of the log that it sends.

The daemon writes lines to a file and reads a pipe, so a receiver that is away costs it nothing.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog
from pydantic import ValidationError
from structlog.typing import EventDict

import genesis_fp16
from genesis_fp16.daemon.service_process import ServiceProcess
from genesis_fp16.domain.telemetry import FOLDER, LOG_FILE, TelemetryReport, TelemetrySpec
from genesis_fp16.settings import Settings

STOP_SECONDS = 2.0  # for a last export; what is left is sent after the next start
HANG_SECONDS = 600.0  # three exports, each as long as the longest timeout that is reasonable
MOST_LOG_BYTES = 16 << 20  # of each of two files
EARLY_LINES = 200  # kept until the home may be written to
_PACKAGE = "opentelemetry-exporter-otlp-proto-http"
INSTALL_EXPORTER = "pip install 'genesis-fp16[otel]', or set GENESIS_OTEL=false"
_WARNINGS = {
    "telemetry_log_lines_lost",
    "telemetry_metrics_unreadable",
    "telemetry_not_delivered",
    "telemetry_refused",
    "telemetry_store_unreadable",
    "telemetry_variable_ignored",
}

log = structlog.get_logger()


def missing_exporter() -> str:
    """The distribution that exports and is not installed; empty if it is."""
    try:
        version(_PACKAGE)
    except PackageNotFoundError:
        return _PACKAGE
    return ""


class TelemetryService:
    """Starts the exporter at once and whenever it has ended.

    Args:
        settings: Settings of the daemon.
        metrics_url: Where the daemon's metrics are read.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        metrics_url: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = TelemetrySpec(
            parent=os.getpid(),
            home=settings.home.absolute(),
            database_url=settings.database_url,
            metrics_url=metrics_url,
            started_at=time.time(),
            release=genesis_fp16.__version__,
        )
        self._process: ServiceProcess | None = None
        if missing := missing_exporter():
            log.error("telemetry_not_exported", missing=missing, remedy=INSTALL_EXPORTER)
            return
        self._process = ServiceProcess(
            "telemetry",
            clock,
            stop_seconds=STOP_SECONDS,
            on_line=_log_report,
            hang_seconds=HANG_SECONDS,
            waits=False,
        )

    @property
    def pid(self) -> int | None:
        """The exporter; None while there is none."""
        return None if self._process is None else self._process.pid

    def tick(self) -> None:
        """Start the exporter if it has ended; called in every round of the loop."""
        if self._process is not None:
            self._process.tick(lambda _listeners: self._spec.model_dump_json())

    def close(self) -> None:
        """Let it export what is left, for a moment, and stop it."""
        if self._process is not None:
            self._process.close()


class LogCopy:
    """A processor of structlog that appends each line to a file, as JSON, from `open` on.

    The file is turned over at `MOST_LOG_BYTES`. A line that cannot be written is lost: the daemon
    goes on, as it does without its log.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._early: deque[bytes] = deque(maxlen=EARLY_LINES)
        self._path: Path | None = None
        self._descriptor = -1
        self._size = 0

    def __call__(self, _logger: object, _name: str, line: EventDict) -> EventDict:
        """Append *line*, and return it as it is."""
        shown = structlog.processors.format_exc_info(_logger, _name, {**line})
        fields = {"time": time.time(), **shown}  # the time first: by it a file is known
        fields.pop("timestamp", None)
        text = json.dumps(fields, default=str).encode() + b"\n"
        with self._lock, suppress(OSError):
            if self._path is None:
                self._early.append(text)
            else:
                self._write(text)
        return line

    def open(self, home: Path) -> None:
        """Begin to write below *home*."""
        with self._lock, suppress(OSError):
            path = home.absolute() / FOLDER / LOG_FILE
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._path = path
            for text in self._early:
                self._write(text)
            self._early.clear()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._path, self._descriptor = None, -1

    def _write(self, text: bytes) -> None:
        if self._path is None:
            return
        if self._descriptor < 0:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o600)
            self._size = os.fstat(self._descriptor).st_size
        self._size += os.write(self._descriptor, text)
        if self._size >= MOST_LOG_BYTES:
            os.close(self._descriptor)
            self._descriptor = -1
            self._path.replace(self._path.with_name(self._path.name + ".1"))


def _log_report(line: bytes) -> None:
    try:
        report = TelemetryReport.model_validate_json(line)
    except ValidationError:
        log.error("telemetry_report_unreadable", text=line[:200].decode(errors="replace"))
        return
    for notice in report.notices:
        write = log.warning if notice.event in _WARNINGS else log.info
        write(notice.event, **{n: text for n, text in notice.fields.items() if n != "event"})
