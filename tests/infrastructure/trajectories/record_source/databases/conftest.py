from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bson
import pytest
import redis

from infrastructure.trajectories import ReplayBuffer
from infrastructure.trajectories.record_source import DatabaseSource
from infrastructure.trajectories.record_source.definition import parse_definition
from tests.patience import wait_until

_OP_REPLY, _OP_QUERY, _OP_MSG = 1, 2004, 2013


def trajectory(number: int, agent: str = "builder_agent_shop") -> dict[str, Any]:
    """A trajectory as Genesis' replay buffer stores it."""
    return {
        "trajectory_id": f"t{number}",
        "agent_id": agent,
        "task_description": f"task {number}",
        "initial_state": {"business_id": "shop", "patterns": {"available": number}},
        "steps": [
            {"timestamp": "2026-11-01", "tool_name": "plan", "tool_args": {"n": number}},
            {"timestamp": "2026-11-01", "tool_name": "build", "tool_result": None},
        ],
        "final_outcome": "success" if number % 2 else "failure",
        "reward": 0.9 if number % 2 else 0.1,
        "metadata": {},
        "created_at": "2026-11-01",
        "duration_seconds": 1.0,
    }


class Home:
    """An agent of a daemon whose records are in a server."""

    def __init__(self, home: Path, source: str) -> None:
        self.home, self.agent_folder = home, home / "agents" / "builder"
        self.agent_folder.mkdir(parents=True)
        self.text = f'[source]\nformat = "replay-trajectories"\n{source}'
        self.source: DatabaseSource

    def run(self, *, stop_after: int = -1, keep: bool = True) -> list[str]:
        """Do what a run does; return the tasks of the transitions that it recorded."""
        definition = parse_definition(self.text.encode(), Path("builder.toml"))
        self.source = DatabaseSource.of_definition(
            definition, "builder", self.home, self.agent_folder
        )
        buffer, found = ReplayBuffer(self.agent_folder / "replay"), list[str]()
        transitions: Any = self.source.new_transitions(60.0)
        for transition in transitions:
            buffer.append(transition)
            found.append(str(transition.observation["task"]))
            if len(found) == stop_after:
                break
        transitions.close()
        buffer.close()
        if keep:
            self.source.keep_positions()
        return found


class RedisServer:
    """A real Redis on a free port of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.port = folder, _free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.start()

    def start(self) -> None:
        command = ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--dir", str(self._folder), "--appendonly", "yes", "--daemonize", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=self.port)

        def answers() -> bool:
            try:
                return bool(self.client.ping())
            except redis.ConnectionError:
                return False

        wait_until(answers, "an answer of Redis")

    def store(self, *records: dict[str, Any], keep: int = 10_000) -> None:
        """Append as Genesis' replay buffer does."""
        for record in records:
            self.client.xadd("agent_trajectories", {"data": json.dumps(record)}, maxlen=keep)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class MongoDBServer:
    """Answers MongoDB's driver from a list of documents: no real server is in Debian."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"mongodb://127.0.0.1:{self._socket.getsockname()[1]}"
        self.filters: list[dict[str, Any]] = []
        self._cursors: dict[int, list[dict[str, Any]]] = {}
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()

    def store(self, *records: dict[str, Any], identity: bson.ObjectId | None = None) -> None:
        """Insert as Genesis' replay buffer does."""
        for record in records:
            self.documents.append({"_id": identity or bson.ObjectId(), **record})

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while len(header := stream.read(16)) == 16:
                length, request, _, operation = struct.unpack("<iiii", header)
                body = stream.read(length - 16)
                if operation == _OP_QUERY:
                    name_end = body.index(b"\0", 4) + 1
                    reply = bson.encode(self._command(bson.decode(body[name_end + 8 :])))
                    content = struct.pack("<iqii", 8, 0, 0, 1) + reply
                    operation = _OP_REPLY
                else:
                    reply = bson.encode(self._command(bson.decode(body[5:])))
                    content, operation = struct.pack("<i", 0) + b"\0" + reply, _OP_MSG
                header = struct.pack("<iiii", 16 + len(content), 0, request, operation)
                connection.sendall(header + content)

    def _command(self, command: dict[str, Any]) -> dict[str, Any]:
        if "find" in command:
            self.filters.append(command.get("filter", {}))
            least = command.get("filter", {}).get("_id", {}).get("$gte")
            found = sorted(self.documents, key=lambda each: each["_id"])
            found = [each for each in found if least is None or each["_id"] >= least]
            first, rest = found[:2], found[2:]
            self._cursors[1] = rest
            cursor = {"id": 1 if rest else 0, "ns": "d.c", "firstBatch": first}
            return {"ok": 1.0, "cursor": cursor}
        if "getMore" in command:
            cursor = {"id": 0, "ns": "d.c", "nextBatch": self._cursors.pop(1)}
            return {"ok": 1.0, "cursor": cursor}
        return {
            "ok": 1.0,
            "ismaster": True,
            "isWritablePrimary": True,
            "maxWireVersion": 21,
            "minWireVersion": 0,
            "maxBsonObjectSize": 1 << 24,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
        }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server
    server.kill()


@pytest.fixture
def mongodb_server() -> Iterator[MongoDBServer]:
    server = MongoDBServer()
    yield server
    server.close()


@pytest.fixture
def home_of(tmp_path: Path) -> Callable[[str], Home]:
    return lambda source: Home(tmp_path, source)


@pytest.fixture
def make_trajectory() -> Callable[..., dict[str, Any]]:
    return trajectory
