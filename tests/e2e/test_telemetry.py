"""A real daemon exports to a receiver that is there, away, slow and back."""

import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from benchmarks.measuring.ports import free_port
from genesis_fp16.domain.telemetry import trace_id
from tests.genesis_fp16.telemetry.receiver import attributes, receiving

pytestmark = pytest.mark.e2e


def exporters(log: str) -> list[int]:
    return [
        int(line.split("pid")[1].strip(" :=,}\"'"))
        for line in log.splitlines()
        if "telemetry_started" in line
    ]


def check_trace(spans: list[Any], of: bytes) -> None:
    """The spans of one run, their parents and their events."""
    first = [s for s in spans if s.trace_id == of]
    by_name = {span.name: span for span in first}
    assert by_name.keys() == {
        "run quick",
        "queued",
        "attempt 1",
        "start",
        "collect",
        "train",
        "evaluate",
        "publish",
    }
    parents = {
        s.name: next((p.name for p in first if p.span_id == s.parent_span_id), None) for s in first
    }
    assert parents["train"] == "attempt 1"
    assert parents["evaluate"] == "train"
    assert attributes(by_name["evaluate"])["genesis.metric.mse"] >= 0
    assert parents["attempt 1"] == parents["queued"] == "run quick"
    assert attributes(by_name["run quick"])["genesis.run.state"] == "succeeded"
    events = {event.name for span in first for event in span.events}
    expected = {"due", "worker_started", "worker_finished"}
    assert events >= expected


def test_a_receiver_gets_every_run_once_whatever_happens_to_it_or_the_exporter(
    make_daemon: Callable[..., Any],
) -> None:
    port, daemon = free_port(), make_daemon()
    daemon._environ |= {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_METRIC_EXPORT_INTERVAL": "200",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=tests",
    }
    daemon.configure(
        GENESIS_OTEL="true",
        GENESIS_AGENTS__QUICK__SCHEDULE='"every 1d"',
        GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1,
    )
    daemon.start()  # nobody receives yet

    def run_one() -> None:
        daemon.cli("run", "quick")
        run_ids.update(run["id"] for run in daemon.json("runs"))  # the first is due by itself

    run_ids: set[str] = set()
    run_one()
    daemon.wait_for(lambda: "telemetry_not_delivered" in daemon.log, "to miss the receiver")
    with receiving(port) as receiver:

        def traces() -> Counter[bytes]:
            return Counter(span.trace_id for span in receiver.spans() if not span.parent_span_id)

        def known() -> set[bytes]:
            return {trace_id(run).to_bytes(16) for run in run_ids}

        daemon.wait_for(lambda: traces().keys() >= known(), "to export the run")
        daemon.wait_for(lambda: "telemetry_delivered_again" in daemon.log, "to say so")
        os.kill(exporters(daemon.log)[-1], signal.SIGKILL)
        run_one()
        daemon.wait_for(lambda: traces().keys() >= known(), "to restart the exporter")

        receiver.stalled.set()  # it takes connections, and answers nothing
        asked = receiver.requests
        daemon.wait_for(lambda: receiver.requests > asked, "to wait for the receiver")
        run_one()
        receiver.stalled.clear()
        receiver.status = 503
        run_one()
        receiver.status = 200
        daemon.wait_for(lambda: traces().keys() >= known(), "to export what had waited")
        assert traces().keys() == known()

        check_trace(receiver.spans(), next(iter(known())))
        assert receiver.resources()[0]["deployment.environment.name"] == "tests"
        assert receiver.resources()[0]["service.name"] == "genesis-fp16"

        def logged() -> dict[str, Any]:
            return {record.body.string_value: record for record in receiver.logs()}

        daemon.wait_for(lambda: "run_ended" in logged(), "to export the log")
        assert logged()["daemon_started"].severity_text == "INFO"
        assert logged()["run_ended"].trace_id in known(), "a line of a run leads to its trace"
        daemon.wait_for(lambda: "genesis_runs" in receiver.metrics(), "to export metrics")
        [runs] = [
            point
            for point in receiver.metrics()["genesis_runs"].sum.data_points
            if attributes(point) == {"agent": "quick", "result": "succeeded"}
        ]
        assert runs.as_double >= 1
        assert runs.exemplars[0].trace_id in known()
        seconds = receiver.metrics()["genesis_training_duration_seconds"]
        assert seconds.unit == "s"
    assert daemon.stop()[0] == 0
    assert not [pid for pid in exporters(daemon.log) if psutil.pid_exists(pid)]
