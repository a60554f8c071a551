"""Alerts about predictions: the daemon's metrics, a real Prometheus, a real Alertmanager."""

import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from genesis_fp16.domain.model_reading import ModelReading
from genesis_fp16.domain.predictor import AgentFigures
from genesis_fp16.metrics import Metrics
from tests.e2e.monitoring import conftest
from tests.e2e.monitoring.conftest import PROGRAMS, Monitoring, Receiver
from tests.patience import wait_until

pytestmark = pytest.mark.e2e

READING = ModelReading(
    version="v1",
    outcomes=500,
    log_loss=0.5,
    held_out_loss=0.5,
    base_rate_loss=0.7,
    skill_lost=0.0,
    evidence=0.0,
    calibration_error=0.02,
    coverage=0.9,
    input_drift=0.1,
    gain=None,
    gain_low=None,
    gain_high=None,
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metrics: Metrics
) -> Iterator[tuple[Receiver, Monitoring]]:
    """Who is told of what *metrics* show, with the rules 240 times as fast."""
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        pytest.skip(f"{' and '.join(missing)} not installed: apt-get install them")
    monkeypatch.setattr(conftest, "SPEED", 240)

    class Exporter(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = metrics.render(openmetrics=False)
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ExitStack() as stack:
        exporter = stack.enter_context(ThreadingHTTPServer(("127.0.0.1", 0), Exporter))
        receiver = stack.enter_context(Receiver())
        for server in (exporter, receiver):
            thread = threading.Thread(target=server.serve_forever, args=(0.1,))
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
        monitoring = Monitoring(tmp_path, exporter.server_address[1], receiver.url)
        stack.callback(monitoring.stop)
        yield receiver, monitoring


def test_alerts_about_predictions_arrive_with_their_text(
    metrics: Metrics, told: tuple[Receiver, Monitoring]
) -> None:
    receiver, monitoring = told
    for agent in ("healthy", "worse"):
        metrics.register_agent(agent)
        metrics.on_predictions(agent, AgentFigures(predictions={"model": 3, "failed": 1}))
        metrics.show_model(agent, READING)
    failed = 'count(genesis_predictions_total{outcome="failed"} > 0)'
    wait_until(lambda: monitoring.value(failed) == 2, "Prometheus to scrape both")

    metrics.on_predictions("worse", AgentFigures(predictions={"failed": 2}))
    metrics.on_predictions("healthy", AgentFigures(predictions={"model": 2}))
    metrics.model_taken_back("worse")
    worse = {"log_loss": 0.9, "input_drift": 2.5, "skill_lost": 2.0}
    metrics.show_model("worse", READING.model_copy(update=worse))
    said = {
        "GenesisPredictionsFailing": "predictions failed in 10 minutes",
        "GenesisModelTakenBack": "models out of use in an hour",  # `increase` extrapolates
        "GenesisPredictionsWorthless": "worse: all skill of its predictions has been lost",
        "GenesisInputsDrifted": "worse: an input has been off by 2.5 standard deviations",
    }
    for alert, text in said.items():
        wait_until(lambda: receiver.received(alert, "worse"), f"{alert} to arrive")  # noqa: B023
        [first, *_] = receiver.received(alert, "worse")
        assert text in first["annotations"]["summary"]
        page = f"/docs/how-to/runbook.html#{alert.lower()}"
        assert first["annotations"]["runbook_url"].endswith(page)
    about = {alert["labels"].get("agent") for alert in receiver.alerts}
    assert "healthy" not in about
