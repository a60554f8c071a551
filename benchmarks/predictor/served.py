"""A real predictor in a home with published models, and connections to it."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil

from genesis_fp16.domain.predictor import PredictorSpec
from infrastructure.agent_contract import Transition
from infrastructure.agent_contract.transition import Box, Discrete, Text, TransitionSpec
from infrastructure.world_model import WorldModel

SPEC = TransitionSpec(
    observation={"load": Box(), "kind": Discrete(values=("a", "b", "c")), "text": Text()},
    action={"tool": Discrete(values=("x", "y", "z")), "effort": Box()},
    targets={"ok": Discrete(values=("no", "yes")), "reward": Box()},
    success=("ok", "yes"),
)
TEXTS = ("hello world", "slow disk full", "network down")
QUESTION: dict[str, Any] = {
    "observation": {"load": 0.3, "kind": "a", "text": "slow disk full"},
    "actions": [{"tool": "xyz"[number % 3], "effort": number / 10} for number in range(10)],
}


def fit_model(seed: int, *, members: int, hidden: int) -> WorldModel:
    """A model of the size given; of few rows, since only its answers' time counts."""
    source, rows = random.Random(seed), []
    for number in range(400):
        effort = source.random()
        ok = source.random() < 0.2 + 0.6 * effort
        rows.append(
            Transition(
                group=str(number // 2),
                observation={
                    **{"load": source.random(), "kind": source.choice("abc")},
                    "text": source.choice(TEXTS),
                },
                action={"tool": source.choice("xyz"), "effort": effort},
                reward=float(ok) - effort / 10,
                next_observation={"ok": "yes" if ok else "no"},
                propensity=1 / 3,
            )
        )
    model = WorldModel(SPEC, members=members, hidden=hidden, seed=seed)
    model.fit(rows, epochs=2, device="cpu", precision="fp32")
    return model


class Connection(http.client.HTTPConnection):
    """A connection to the predictor's socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=120)
        self._path = path

    def connect(self) -> None:
        """Connect to the Unix socket."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def ask(self, agent: str, verb: str, body: object) -> dict[str, Any]:
        """The answer to a question.

        Raises:
            RuntimeError: It was refused.
        """
        self.request("POST", f"/api/agents/{agent}/{verb}", json.dumps(body))
        answer = self.getresponse()
        content: dict[str, Any] = json.loads(answer.read())
        if answer.status != 200:
            raise RuntimeError(f"{verb} was answered {answer.status}: {content}")
        return content


class Served:
    """A predictor that runs.

    Attributes:
        home: Its GENESIS_HOME.
        process: Its process.
    """

    def __init__(self, home: Path, listener: socket.socket, most_models: int) -> None:
        self.home, self._path = home, home / "predict.sock"
        self._listener, self._most_models = listener, most_models
        self._connections: list[Connection] = []
        self.process = self._start()

    def connection(self) -> Connection:
        """A new connection, closed with the process."""
        connection = Connection(self._path)
        self._connections.append(connection)
        return connection

    def resident_bytes(self) -> int:
        """Memory of the process."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_seconds(self) -> float:
        """CPU time of the process so far."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        """Let the process end."""
        for connection in self._connections:
            connection.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.process.wait(60)

    def _start(self) -> subprocess.Popen[bytes]:
        spec = PredictorSpec(
            parent=os.getpid(),
            listeners=(self._listener.fileno(),),
            home=self.home,
            most_models=self._most_models,
            outcome_seconds=3600.0,
        )
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "genesis_fp16.predictor"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=[self._listener.fileno()],
        )
        if process.stdin is not None:
            process.stdin.write(spec.model_dump_json().encode() + b"\n")
            process.stdin.flush()
        return process


@contextmanager
def serving(home: Path, *, most_models: int = 200) -> Iterator[Served]:
    """A predictor of *home*, which ends with the block."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        listener.bind(str(home / "predict.sock"))
        listener.listen(512)
        served = Served(home, listener, most_models)
        try:
            yield served
        finally:
            served.end()
