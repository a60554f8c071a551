"""Starts, stops and kills the predictor of the tests."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.measuring.ports import free_port

PROGRAM = Path(__file__).with_name("predict_server.py")


class PredictorProcess:
    """A predictor in *folder*, which keeps what it has acknowledged.

    Attributes:
        url: Its address, if it listens on TCP.
    """

    def __init__(self, folder: Path, *, tcp: bool = False) -> None:
        self.folder = folder
        self._port = free_port() if tcp else None
        self.url = f"http://127.0.0.1:{self._port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        port = [] if self._port is None else [str(self._port)]
        command = [sys.executable, str(PROGRAM), str(self.folder), *port]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        self._process.stdout.close()

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> None:
        assert self._process is not None
        self._process.wait()

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def fail(self, fault: str) -> None:
        """Do this wrong from now on; see `predict_server.Handler.do_POST`."""
        file = self.folder / "fault"
        file.with_suffix(".new").write_text(fault)
        file.with_suffix(".new").replace(file)

    @property
    def requests(self) -> Counter[str]:
        """Last parts of the paths of all requests, counted."""
        file = self.folder / "requests.log"
        lines = file.read_text().splitlines() if file.exists() else []
        return Counter(line.split(" ")[1].rpartition("/")[2] for line in lines)

    def journal(self, kind: str) -> dict[str, dict[str, Any]]:
        """What it has acknowledged of one kind, by id; fails if something stands there twice."""
        file = self.folder / "journal.jsonl"
        lines = file.read_text().splitlines() if file.exists() else []
        records = [json.loads(line) for line in lines]
        keys = [record["key"] for record in records]
        assert len(keys) == len(set(keys))
        return {
            record["key"].split(" ")[1]: record["content"]
            for record in records
            if record["key"].startswith(f"{kind} ")
        }
