"""The loop of the exporter: look for what is new, send it, remember how far it came."""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import BinaryIO
from uuid import NAMESPACE_URL, uuid5

from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.semconv.attributes import service_attributes
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.domain.predictor import Notice
from genesis_fp16.domain.telemetry import FOLDER, LOG_FILE, TelemetryReport, TelemetrySpec
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from genesis_fp16.telemetry.delivery import Delivery, Fate
from genesis_fp16.telemetry.environment import read_environment
from genesis_fp16.telemetry.log_lines import read_lines, record_of
from genesis_fp16.telemetry.position import read_position
from genesis_fp16.telemetry.runs import EndedRun, spans_of
from genesis_fp16.telemetry.scrape import as_metrics, read_metrics

LOOK_SECONDS = 1.0
RUNS_AT_ONCE = 20  # of one export
DECISIONS = 100  # the newest of an agent
REPEAT_SECONDS = 3600.0  # until the same notice is told again
NICENESS = 10  # training and predictions come first


def run(spec: TelemetrySpec, reports: BinaryIO) -> None:
    """Export as *spec* and the environment say until SIGTERM; a last look follows it."""
    os.nice(NICENESS)
    logging.disable(logging.CRITICAL)  # the SDK's own lines: the notices say it once
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with closing(Exporter(spec, reports)) as exporter:
        while not stop.wait(LOOK_SECONDS):
            exporter.look()
        exporter.look(last=True)


class Exporter:
    """Exports what is new at each look."""

    def __init__(self, spec: TelemetrySpec, reports: BinaryIO) -> None:
        self._spec, self._reports = spec, reports
        self._folder = spec.home / FOLDER
        self._notices: list[Notice] = []
        self._told: dict[str, tuple[str, float]] = {}
        self._resource = _resource(spec)
        self._scope = InstrumentationScope("genesis_fp16", spec.release)
        self._position = read_position(self._folder, time.time())
        self._wanted = read_environment()
        self._metrics_at = 0.0
        self._store: Store | None = None
        for text in self._wanted.refused:
            self._notice("telemetry_variable_ignored", variable=text)
        clock = time.monotonic
        self._traces = Delivery[object](
            "traces", lambda session: OTLPSpanExporter(session=session), self._notice, clock
        )
        self._metrics = Delivery[object](
            "metrics", lambda session: OTLPMetricExporter(session=session), self._notice, clock
        )
        self._logs = Delivery[object](
            "logs", lambda session: OTLPLogExporter(session=session), self._notice, clock
        )

    def look(self, *, last: bool = False) -> None:
        """Send what is new, then report; at the *last* look also metrics that are not due."""
        wanted = self._wanted.signals
        if "logs" in wanted and self._logs.is_due:
            self._send_logs()
        if "traces" in wanted and self._traces.is_due:
            self._send_runs()
        due = last or time.monotonic() >= self._metrics_at
        if "metrics" in wanted and due and self._metrics.is_due:
            self._send_metrics()
        self._report()

    def close(self) -> None:
        """Close connections and the database."""
        for delivery in (self._traces, self._metrics, self._logs):
            delivery.close()
        if self._store is not None:
            self._store.close()

    def _send_logs(self) -> None:
        while True:
            position = self._position
            read = read_lines(self._folder / LOG_FILE, position)
            if read.lost:
                remedy = "the receiver was away for too long; the daemon's own log has them"
                self._notice("telemetry_log_lines_lost", remedy=remedy)
            if (read.head, read.offset) == (position.log_head, position.log_offset):
                return
            records = [record_of(line, self._resource, self._scope) for line in read.lines]
            if records and self._logs.send(records) is Fate.WAITS:
                return
            position.log_head, position.log_offset = read.head, read.offset
            self._save()
            self._report()

    def _send_runs(self) -> None:
        position = self._position
        try:
            for ids in self._unsent():
                spans = [span for run_id in ids for span in self._spans(run_id)]
                if spans and self._traces.send(spans) is Fate.WAITS:
                    return
                for run_id, ended_at in ids.items():
                    position.add(run_id, ended_at)
                self._save()
                self._report()
        except (StoreError, SQLAlchemyError) as error:  # the next look may succeed
            self._notice_once("telemetry_store_unreadable", error=str(error))
            self._store = None

    def _unsent(self) -> Iterator[dict[str, float]]:
        """Runs that have ended and are not exported, with their end, the oldest first."""
        if self._store is None:
            url = self._spec.database_url
            self._store = Store.open(Settings(home=self._spec.home, database_url=url))
        ended = self._store.ended_since(self._position.since)
        left = [(run, at) for run, at in ended.items() if run not in self._position.sent]
        for first in range(0, len(left), RUNS_AT_ONCE):
            yield dict(left[first : first + RUNS_AT_ONCE])

    def _spans(self, run_id: str) -> list[ReadableSpan]:
        if self._store is None or (run := self._store.run(run_id)) is None:
            return []  # another program wrote a row that cannot be read
        attempts = self._store.attempts(run_id)
        decisions = self._store.guard.history(run.agent, DECISIONS)
        ended = EndedRun(run=run, attempts=attempts, decisions=decisions)
        return spans_of(ended, self._spec.home, self._resource, self._scope)

    def _send_metrics(self) -> None:
        now = time.time()
        try:
            text = read_metrics(self._spec.metrics_url)
        except OSError as error:
            self._notice_once("telemetry_metrics_unreadable", error=str(error))
            self._metrics_at = time.monotonic() + self._wanted.metric_seconds
            return
        metrics = as_metrics(text, (self._spec.started_at, now), self._resource, self._scope)
        if self._metrics.send(metrics) is not Fate.WAITS:
            self._metrics_at = time.monotonic() + self._wanted.metric_seconds

    def _save(self) -> None:
        with suppress(OSError):  # no room: what is sent now may be sent again
            self._position.save(self._folder)

    def _notice(self, event: str, **fields: object) -> None:
        self._notices.append(
            Notice(event=event, fields={name: str(value) for name, value in fields.items()})
        )

    def _notice_once(self, event: str, *, error: str) -> None:
        """Not at each look: the line of a notice is exported, too."""
        now = time.monotonic()
        text, at = self._told.get(event, ("", 0.0))
        if error != text or now >= at + REPEAT_SECONDS:
            self._told[event] = (error, now)
            self._notice(event, error=error)

    def _report(self) -> None:
        report, self._notices = TelemetryReport(notices=self._notices), []
        with suppress(OSError):  # the daemon has gone
            self._reports.write(report.model_dump_json().encode() + b"\n")
            self._reports.flush()


def _resource(spec: TelemetrySpec) -> Resource:
    """Who exports; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win."""
    host = socket.gethostname()
    ours = {
        service_attributes.SERVICE_NAME: "genesis-fp16",
        service_attributes.SERVICE_VERSION: spec.release,
        "service.instance.id": str(uuid5(NAMESPACE_URL, f"{host}{spec.home}")),
        "host.name": host,
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())
