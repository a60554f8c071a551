"""Metrics as OpenTelemetry's, and what becomes of a batch."""

import threading
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricsData
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanLimits
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from genesis_fp16.domain.run import RunState
from genesis_fp16.domain.telemetry import trace_id
from genesis_fp16.metrics import Metrics
from genesis_fp16.telemetry.delivery import Delivery, Fate
from genesis_fp16.telemetry.environment import read_environment
from genesis_fp16.telemetry.scrape import as_metrics
from infrastructure.events.event import CheckpointSaved
from tests.genesis_fp16.telemetry.receiver import attributes, receiving


def shown() -> str:
    metrics = Metrics()
    metrics.on_run_state("oak", "r1", RunState.SUCCEEDED)
    saved = CheckpointSaved(step=1, path="x", size_bytes=5, seconds=0.2)
    metrics.on_event("oak", "r1", saved)
    metrics.on_event("oak", "r1", saved)
    return metrics.render(openmetrics=True).decode()


def test_counters_gauges_and_histograms_arrive_with_the_runs_that_explain_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    notices: list[str] = []
    now = [0.0]
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
        delivery = Delivery[object](
            "metrics",
            lambda session: OTLPMetricExporter(session=session, timeout=5),
            lambda event, **_: notices.append(event),
            lambda: now[0],
        )
        sent = as_metrics(shown(), (1.0, 2.0), Resource({}), InstrumentationScope("test"))
        assert delivery.send(sent) is Fate.SENT
        metrics = receiver.metrics()
        [runs] = [
            point
            for point in metrics["genesis_runs"].sum.data_points
            if attributes(point) == {"agent": "oak", "result": "succeeded"}
        ]
        assert (runs.as_double, runs.start_time_unix_nano, runs.time_unix_nano) == (1, 1e9, 2e9)
        assert runs.exemplars[0].trace_id == trace_id("r1").to_bytes(16)
        assert metrics["genesis_runs"].sum.is_monotonic
        saved = metrics["genesis_checkpoint_duration_seconds"]
        [point] = saved.histogram.data_points
        assert (saved.unit, point.count, sum(point.bucket_counts)) == ("s", 2, 2)
        assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
        assert point.sum == pytest.approx(0.4)
        assert metrics["genesis_leader"].gauge.data_points

        wrong = replace(sent, resource_metrics=[None])
        assert delivery.send(wrong) is Fate.REFUSED, "it would never be delivered"
        receiver.status = 400
        assert delivery.send(sent) is Fate.REFUSED, "the protocol forbids to send it again"
        assert delivery.send(sent) is Fate.REFUSED
        receiver.status = 403
        assert delivery.send(sent) is Fate.WAITS, "somebody will mend the token"
        assert not delivery.is_due
        now[0] = 1.0
        assert delivery.is_due
        receiver.status = 200
        assert delivery.send(sent) is Fate.SENT
    assert notices == ["telemetry_refused"] * 2 + [
        "telemetry_not_delivered",
        "telemetry_delivered_again",
    ]
    delivery.close()


@pytest.mark.parametrize("endpoint", ["collector", "http://:4318", "http://c:99999", "http://[::1"])
def test_an_endpoint_that_is_no_url_loses_nothing(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
    fields, delivery = watched()
    assert delivery.send(some_metrics()) is Fate.WAITS
    assert delivery.send(some_metrics()) is Fate.WAITS
    [told] = fields
    assert str(told["endpoint"]).startswith(endpoint)
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in str(told["remedy"])
    delivery.close()


def test_a_redirect_and_an_answer_without_end_deliver_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            if status == 302:
                self.send_header("Location", "http://login")
                self.send_header("Content-Length", "0")
            self.end_headers()
            with suppress(OSError):
                while status == 200:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *_: object) -> None:
            pass

    status = 302
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        fields, delivery = watched()
        assert delivery.send(some_metrics()) is Fate.WAITS
        assert (fields[0]["status"], fields[0]["endpoint"]) == (302, f"{url}/v1/metrics")
        assert "redirects to http://login" in str(fields[0]["error"])
        delivery.close()
        status = 200
        fields, delivery = watched()
        assert delivery.send(some_metrics()) is Fate.WAITS
        assert "too long or too slow" in str(fields[0]["error"])
        delivery.close()
    finally:
        server.shutdown()
        server.server_close()


def test_malformed_numbers_count_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SPAN_EVENT_COUNT_LIMIT", "abc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "-1")
    monkeypatch.setenv("OTEL_ATTRIBUTE_COUNT_LIMIT", "7")
    refused = read_environment().refused
    assert refused == ("OTEL_SPAN_EVENT_COUNT_LIMIT=abc", "OTEL_EXPORTER_OTLP_TIMEOUT=-1")
    assert SpanLimits().max_events == 128


def watched() -> tuple[list[dict[str, object]], Delivery[object]]:
    fields: list[dict[str, object]] = []
    return fields, Delivery[object](
        "metrics",
        lambda session: OTLPMetricExporter(session=session, timeout=5),
        lambda _event, **told: fields.append(told),
        lambda: 0.0,
    )


def some_metrics() -> MetricsData:
    return as_metrics(shown(), (1.0, 2.0), Resource({}), InstrumentationScope("test"))
