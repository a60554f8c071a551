"""Where running agents ask, and when the predictor's process starts, ends and starts again."""

import grp
import http.client
import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from structlog.testing import capture_logs

from benchmarks.measuring.ports import free_port
from genesis_fp16.daemon.api_tokens import TokenError
from genesis_fp16.daemon.prediction import SOCKET_NAME, PredictionService
from genesis_fp16.domain.predictor import AgentFigures, KnownAgent
from genesis_fp16.metrics import Metrics
from genesis_fp16.settings import Settings
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process
TOKEN = "a-token-for-tests-0123456789"
QUESTION = {"observation": {"load": 1.0}, "actions": [{"tool": "x"}, {"tool": "y"}]}

Serve = Callable[..., PredictionService]


@pytest.fixture
def serve(home_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    monkeypatch.setattr(subprocess, "Popen", ForkedPopen)
    home_settings.home.mkdir(exist_ok=True)
    services: list[PredictionService] = []

    def serve(
        on_figures: Callable[[str, AgentFigures], None] = lambda *_: None,
        explore: str = "",
        **changes: object,
    ) -> PredictionService:
        settings = home_settings.model_copy(update=changes)
        services.append(
            PredictionService(settings, lambda: {"qa": KnownAgent(explore=explore)}, on_figures)
        )
        return services[-1]

    yield serve
    for service in services:
        service.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect(str(self._path))


def ask(
    service: PredictionService,
    connection: http.client.HTTPConnection,
    headers: dict[str, str] | None = None,
    verb: str = "decisions",
) -> tuple[int, Any]:
    """Send a question, and let the service answer it."""
    with closing(connection):
        connection.request("POST", f"/api/agents/qa/{verb}", json.dumps(QUESTION), headers or {})
        service.tick()
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_it_starts_with_the_first_question_and_again_after_its_death(
    serve: Serve, home_settings: Settings, until: Callable[..., None]
) -> None:
    path, counted = home_settings.home / SOCKET_NAME, list[AgentFigures]()
    service = serve(lambda _, figures: counted.append(figures), explore="epsilon 1")
    service.tick()
    assert service.pid is None, "nobody has asked"
    status, answer = ask(service, _UnixConnection(path))
    assert (status, answer["propensities"]) == (200, [0.5, 0.5])
    until(lambda: service.tick() or counted)
    assert counted[0].predictions == {"no_model": 1}
    assert counted[0].decisions == {"decision": 1}
    assert sum(counted[0].seconds) == 1
    first = service.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    until(lambda: psutil.Process(first).status() == psutil.STATUS_ZOMBIE)
    with capture_logs() as logs, closing(_UnixConnection(path)) as waiting:
        waiting.request("POST", "/api/agents/qa/rank", json.dumps(QUESTION))
        until(lambda: service.tick() or service.pid not in (None, first))
        assert waiting.getresponse().status == 200, "it waited while there was no process"
    assert [line["event"] for line in logs] == ["predictor_ended", "predictor_started"]
    second = service.pid
    service.close()
    assert not psutil.pid_exists(second)
    assert not path.exists()


def test_counts_become_metrics(serve: Serve, home_settings: Settings, until) -> None:
    metrics = Metrics()
    service = serve(metrics.on_predictions)
    ask(service, _UnixConnection(home_settings.home / SOCKET_NAME))

    def shown() -> bool:
        service.tick()
        return b'genesis_decisions_total{agent="qa",kind="decision"} 1.0' in text()

    def text() -> bytes:
        return metrics.render(openmetrics=False)

    until(shown)
    assert b'genesis_predictions_total{agent="qa",outcome="no_model"} 1.0' in text()
    assert b'genesis_prediction_seconds_count{agent="qa"} 1.0' in text()
    assert b'genesis_outcomes_total{agent="qa",state="late"} 0.0' in text()


def test_only_the_owner_may_open_the_socket_unless_a_group_is_named(
    serve: Serve, home_settings: Settings
) -> None:
    path = home_settings.home / SOCKET_NAME
    serve()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    group = grp.getgrgid(os.getgid())
    serve(predict_group=group.gr_name)
    status = path.stat()
    assert (stat.S_IMODE(status.st_mode), status.st_gid) == (0o660, group.gr_gid)
    with capture_logs() as logs:
        serve(predict_group="no-such-group")
    assert [line["event"] for line in logs] == ["predict_socket_failed"]


def test_tcp_demands_a_token_with_the_role(serve: Serve, tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="GENESIS_PREDICT_PORT"):
        serve(predict_port=0)
    tokens, port = tmp_path / "tokens", free_port()
    tokens.write_text(
        f"ann {TOKEN}-ann read\nbob {TOKEN}-bob ask\nold {TOKEN}-old ask 2020-01-01\n"
    )
    service = serve(predict_port=port, api_token_file=tokens)
    expected = {"bob": 200, "ann": 403, "old": 401, "none": 401}
    for name, status in expected.items():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        bearer = {"Authorization": f"Bearer {TOKEN}-{name}"}
        assert ask(service, connection, bearer)[0] == status, name


def test_an_address_in_use_costs_that_address_alone(serve: Serve, home_settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, capture_logs() as logs:
        service = serve(predict_port=other.getsockname()[1], api_token=TOKEN)
    assert [line["event"] for line in logs] == ["predict_address_failed"]
    assert ask(service, _UnixConnection(home_settings.home / SOCKET_NAME), verb="rank")[0] == 200


def test_it_is_off_where_the_operator_says_so(serve: Serve, home_settings: Settings) -> None:
    serve(predictor=False).tick()
    assert not (home_settings.home / SOCKET_NAME).exists()
