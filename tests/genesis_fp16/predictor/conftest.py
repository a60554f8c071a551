"""A real predictor on a real socket, with models that were fitted for it."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.domain.predictor import PredictorOrder, PredictorReport, PredictorSpec
from genesis_fp16.plugins.model_versions import (
    ModelVersion,
    describe_published,
    keep_version,
    put_back,
)
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.world_model import WorldModel
from tests.preloaded import ForkedPopen

SPEC = TransitionSpec(
    observation={"load": Box(), "note": Text(buckets=64)},
    action={"tool": Discrete(values=("x", "y", "z"))},
    targets={"ok": Discrete(values=("no", "yes")), "reward": Box()},
    success=("ok", "yes"),
)
BEST = {"a": "x", "b": "y"}  # the tool that succeeds, by the model's letter
TOOLS = [{"tool": tool} for tool in "xyz"]
QUESTION = {"observation": {"load": 0.5, "note": "disk full"}, "actions": TOOLS}


def _fitted(letter: str) -> WorldModel:
    source, rows = random.Random(letter), []
    for number in range(240):
        tool = source.choice("xyz")
        ok = source.random() < (0.9 if tool == BEST[letter] else 0.1)
        rows.append(
            Transition(
                group=str(number),
                observation={"load": source.random(), "note": source.choice(["disk full", "ok"])},
                action={"tool": tool},
                next_observation={"ok": "yes" if ok else "no"},
                reward=float(ok),
                propensity=1 / 3,
            )
        )
    model = WorldModel(SPEC, members=1, hidden=8)
    model.fit(rows, epochs=4, device="cpu", precision="fp32")
    return model


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders of two small models that prefer different tools."""
    folder = tmp_path_factory.mktemp("models")
    for letter in BEST:
        _fitted(letter).save(folder / letter)
    return {letter: folder / letter for letter in BEST}


class Client(http.client.HTTPConnection):
    """A connection to a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(
        self, path: str, body: object = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and content of an answer; a *body* that is bytes is sent as it is."""
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        self.request("GET" if body is None else "POST", path, content, headers or {})
        answer = self.getresponse()
        text = answer.read()
        assert answer.headers["Genesis-Protocol"] == "1"
        return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text

    def agent(self, verb: str, body: object, agent: str = "qa") -> tuple[int, Any]:
        """Ask about an agent."""
        return self.ask(f"/api/agents/{agent}/{verb}", body)


class Predictor:
    """A predictor that a test started; its socket stays while it is replaced."""

    def __init__(self, home: Path, stack: ExitStack, **spec: Any) -> None:
        self.home, self.path = home, home / "predict.sock"
        self._spec, self._stack = spec, stack
        self.listener = stack.enter_context(socket.socket(socket.AF_UNIX))
        self.listener.bind(str(self.path))
        self.listener.listen(64)
        self.process: subprocess.Popen[bytes]
        self.start()

    def start(self, **spec: Any) -> None:
        """Start the process, after the one before has ended."""
        usual = {"most_models": 8, "outcome_seconds": 3600.0, "agents": {"qa": {"explore": "none"}}}
        usual["listeners"] = [self.listener.fileno()]
        told = PredictorSpec(parent=os.getpid(), home=self.home, **usual | self._spec | spec)
        self.process = ForkedPopen(
            [sys.executable, "-P", "-m", "genesis_fp16.predictor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=told.listeners,
        )
        self._stack.callback(self.end)
        self.tell(told)

    def tell(self, order: PredictorOrder) -> None:
        """Send a line to its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(order.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def report(self) -> PredictorReport:
        """The next report."""
        assert self.process.stdout is not None
        return PredictorReport.model_validate_json(self.process.stdout.readline())

    def client(self) -> Client:
        """A new connection, closed with the predictor."""
        return self._stack.enter_context(closing(Client(self.path)))

    def kill(self) -> None:
        """Kill the process."""
        self.process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> int:
        """Let the process end by closing its standard input; its exit code."""
        for file in (self.process.stdin, self.process.stdout):
            if file is not None:
                file.close()
        return self.process.wait(60)


Start = Callable[..., Predictor]


@contextmanager
def starting(home: Path) -> Iterator[Start]:
    """Start predictors in *home*; they end with the block."""
    (home / "agents" / "qa").mkdir(parents=True)
    with ExitStack() as stack:
        yield lambda **spec: Predictor(home, stack, **spec)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GENESIS_HOME of the module's predictor."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def predictor(home: Path, models: dict[str, Path]) -> Iterator[Predictor]:
    """A predictor that serves model ``a`` for the agent ``qa``."""
    with starting(home) as start:
        publish(home / "agents" / "qa", models["a"], "run-a")
        yield start()


@pytest.fixture
def client(predictor: Predictor) -> Client:
    """A connection to the module's predictor."""
    return predictor.client()


def publish(agent_folder: Path, model: Path, version: str) -> None:
    """Publish *model* as a run does, and keep it as *version*."""
    WorldModel.load(model).save(agent_folder / "published")
    files = describe_published(agent_folder)
    facts = ModelVersion(
        id=version,
        run_id=version,
        published_at=1.0,
        replaced=None,
        reason="test",
        metrics={},
        data=None,
        files=files,
    )
    keep_version(agent_folder, facts, keep=5)


def roll_back(agent_folder: Path, version: str) -> None:
    """Put *version* back."""
    put_back(agent_folder, version)
