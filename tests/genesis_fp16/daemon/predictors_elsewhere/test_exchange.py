"""Models and outcomes between a home and predict-servers, through a real S3 server."""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.daemon.predictors_elsewhere import DaemonSide, ServerSide
from genesis_fp16.daemon.predictors_elsewhere.objects import PLACE
from genesis_fp16.models import load_published
from genesis_fp16.runs.outcome_counts import OutcomeCounts
from genesis_fp16.system.bucket import Bucket
from infrastructure.decisions import take_in
from infrastructure.decisions.log import LOGS_ELSEWHERE, logs_of
from infrastructure.trajectories import ReplayBuffer
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.genesis_fp16.predictor.conftest import (
    QUESTION,
    Client,
    models,  # noqa: F401  # a fixture
    publish,
    roll_back,
)
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process
OUTCOME = {"reward": 1.0, "next_observation": {"ok": "yes"}}


@pytest.fixture
def bucket(object_server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    for name, value in object_server.variables.items():
        monkeypatch.setenv(name, value)
    return Bucket(f"{object_server.url}/{secrets.token_hex(4)}")


class Server:
    """A predict-server of its own home, started as an operator starts it."""

    def __init__(self, home: Path, url: str) -> None:
        self.home = home
        self._command = [Path(sys.executable).with_name("genesis-fp16"), "predict-server"]
        self._command += ["--models", url]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        environ = os.environ | {"GENESIS_HOME": str(self.home)}
        self.process = ForkedPopen(self._command, env=environ, cwd=self.home.parent)

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(120)
        self.process = None
        return code

    def ask(self, verb: str, body: object) -> tuple[int, Any]:
        """An answer; status 0 while it does not listen."""
        try:
            with closing(Client(self.home / "predict.sock")) as client:
                return client.agent(verb, body)
        except OSError:
            return 0, {}

    def close(self) -> None:
        if self.process is not None:
            self.stop(signal.SIGKILL)


@pytest.fixture
def server(bucket: Bucket, tmp_path: Path) -> Iterator[Server]:
    with closing(Server(tmp_path / "server", bucket.url)) as server:
        yield server


def taken(agent: Path) -> list[str]:
    """Decisions in the replay buffer after a run has taken in all logs."""
    for source, log in logs_of(agent).items():
        report = take_in(log, agent / "replay", now=0.0, source=source)
        assert report.skipped == []
    return sorted(row.info["decision"] for row in ReplayBuffer(agent / "replay").read())


def test_a_server_answers_with_the_daemons_models_and_all_it_acknowledges_arrives_once(
    bucket: Bucket,
    server: Server,
    tmp_path: Path,
    models: dict[str, Path],  # noqa: F811
    until: Callable[..., None],
) -> None:
    agent = tmp_path / "home" / "agents" / "qa"
    publish(agent, models["a"], "run-a")
    daemon = DaemonSide(tmp_path / "home", bucket.below(PLACE))
    daemon.step()
    server.start()

    def version() -> object:
        return server.ask("rank", QUESTION)[1].get("version")

    until(lambda: version() == "run-a")
    publish(agent, models["b"], "run-b")
    daemon.step()
    until(lambda: version() == "run-b")
    roll_back(agent, "run-a")
    daemon.step()
    until(lambda: version() == "run-a")

    acknowledged = []
    for number in range(12):
        name = f"d{number}"
        until(lambda: server.ask("decisions", {**QUESTION, "id": name})[0] == 200)  # noqa: B023
        until(lambda: server.ask(f"decisions/{name}/outcome", OUTCOME)[0] == 200)  # noqa: B023
        acknowledged.append(name)
        if number in (3, 7):
            server.stop(signal.SIGKILL)  # its predictor dies with it
            server.start()
        if number % 4 == 1:
            daemon.step()
    assert server.stop() == 0, "what was acknowledged is sent before it ends"
    for _ in range(2):  # the second has nothing to do
        daemon.step()
        assert OutcomeCounts(tmp_path / "home").of("qa") in (12, 0)
        assert taken(agent) == sorted(acknowledged)
    assert bucket.below(PLACE).names("outcomes") == []


def test_a_chunk_that_is_sent_and_fetched_again_counts_once(
    bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill between an object's writing and the record that it was written."""
    home, place = tmp_path / "home", bucket.below(PLACE)
    (home / "agents" / "qa").mkdir(parents=True)
    daemon, side = DaemonSide(home, place), ServerSide(tmp_path / "server", place)
    log = tmp_path / "server" / "agents" / "qa" / "decisions"
    log.mkdir(parents=True)
    segment, copy = log / "00000001.ndjson", home / "agents" / "qa" / LOGS_ELSEWHERE / side.server
    segment.write_text("one\ntwo\nthree, torn")
    side.send()
    (log / "sent.json").unlink()  # the record is lost
    segment.write_text("one\ntwo\nthree, torn no more\n")
    side.send()
    daemon.step()
    (log / "sent.json").unlink()
    side.send()
    daemon.step()
    assert (copy / segment.name).read_text() == "one\ntwo\nthree, torn no more\n"
    (log / "00000002.ndjson").write_text("four\n")
    with segment.open("a") as file:
        file.write("and a half\n")
    side.send()
    place.write(f"outcomes/{side.server}/../../evil/00000001-000000000000.ndjson", b"x\n")
    daemon.step()
    assert (copy / segment.name).read_text().endswith("and a half\n")
    assert (copy / "00000002.ndjson").read_text() == "four\n"
    assert not (tmp_path / "evil").exists()


def test_an_altered_model_is_not_used(
    bucket: Bucket,
    tmp_path: Path,
    models: dict[str, Path],  # noqa: F811
) -> None:
    agent, place = tmp_path / "home" / "agents" / "qa", bucket.below(PLACE)
    publish(agent, models["a"], "run-a")
    daemon, side = DaemonSide(tmp_path / "home", place), ServerSide(tmp_path / "server", place)
    with pytest.raises(OSError, match="GENESIS_PREDICT_SHARED"):
        side.step()
    daemon.step()
    side.step()
    fetched = tmp_path / "server" / "agents" / "qa"
    assert load_published(fetched).version == "run-a"
    publish(agent, models["b"], "run-b")
    daemon.step()
    (index,) = [name for name in place.names("models") if name.endswith("model.json")]
    content = place.read(index) or b""
    place.write(index, content.replace(b"a", b"b"))
    with pytest.raises(OSError, match="was altered"):
        side.step()
    assert load_published(fetched).version == "run-a", "the one before answers on"
    place.write(index, content)
    side.step()
    assert load_published(fetched).version == "run-b"
