"""A predictor that keeps the protocol, in a process of its own, with faults on demand.

``python predict_server.py FOLDER [PORT]`` listens on ``predict.sock`` in FOLDER, or on the port.
What it acknowledges stands in ``journal.jsonl``, fsynced, and survives kill -9. The file ``fault``
holds what it does wrong now, and ``requests.log`` every request.
"""

from __future__ import annotations

import json
import os
import signal
import socketserver
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

Json = dict[str, Any]


class Journal:
    """Records by kind and id; each is written once."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._records: dict[str, Json] = {}
        self._file = path.open("a+")
        self._file.seek(0)
        for line in self._file:
            record = json.loads(line)
            self._records[record["key"]] = record["content"]

    def __contains__(self, key: str) -> bool:
        return key in self._records

    def add(self, contents: dict[str, Json]) -> list[bool] | None:
        """Whether each record is new; None if one contradicts what is recorded."""
        with self._lock:
            known = {key: self._records[key] for key in contents if key in self._records}
            if any(contents[key] != content for key, content in known.items()):
                return None
            new = {key: content for key, content in contents.items() if key not in known}
            for key, content in new.items():
                self._file.write(json.dumps({"key": key, "content": content}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())
            self._records |= new
            return [key in new for key in contents]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Predictor

    def setup(self) -> None:
        super().setup()
        self.client_address = ("client", 0)

    def log_message(self, *_: object) -> None:
        with self.server.folder.joinpath("requests.log").open("a") as log:
            log.write(f"{self.requestline}\n")

    def do_GET(self) -> None:
        self._answer(200, {"status": "ready"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["Genesis-Protocol"] not in (None, "1"):
            self._problem(400, "protocol 1 is spoken here")
            return
        _, _, _, agent, *tail = self.path.split("/")
        if self._fails():
            return
        if agent == "unknown":
            self._problem(404, "no agent has this name", field="agent")
        else:
            getattr(self, f"_{tail[-1]}")(json.loads(body), tail)

    def _fails(self) -> bool:
        """Do what the test wants to go wrong; true if that was the answer."""
        fault, _, argument = self.server.fault().partition(" ")
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "slow":
            time.sleep(float(argument))
        elif fault == "garbage":
            self.connection.sendall(b"\x00\xffnothing of HTTP\r\n\r\n")
            self.close_connection = True
        elif fault == "half":
            self.connection.sendall(
                b"HTTP/1.1 200 OK\r\nGenesis-Protocol: 1\r\nContent-Length: 100\r\n\r\n{"
            )
            self.close_connection = True
        elif fault == "drip":
            for _ in range(100):
                self.connection.sendall(b"H")
                time.sleep(float(argument))
        elif fault == "status":
            self._problem(int(argument), "as the test wants it")
        elif fault == "answer":
            self._answer(200, json.loads(argument))
        return fault in {"garbage", "half", "status", "answer"}

    def _rank(self, question: Json, _: list[str]) -> None:
        self._answer(200, self._ranking(question))

    def _decisions(self, question: Json, _: list[str]) -> None:
        if self.server.journal.add({f"decision {question['id']}": question}) is None:
            self._problem(409, "the id was used for another decision")
            return
        ranking = self._ranking(question)
        first = ranking["order"][0]
        count = len(question["actions"])
        self._answer(
            200,
            ranking
            | {"id": question["id"], "chosen": first, "propensity": 0.9}
            | {"propensities": [0.9] * count, "deadline": time.time() + 3600},
        )

    def _outcome(self, outcome: Json, tail: list[str]) -> None:
        key = f"decision {tail[-2]}"
        if key not in self.server.journal and f"choice {tail[-2]}" not in self.server.journal:
            self._problem(404, "no decision has this id", field="decision")
            return
        new = self.server.journal.add({f"outcome {tail[-2]}": outcome})
        if new is None:
            self._problem(409, "the decision has another outcome")
        else:
            state = "recorded" if new[0] else "repeated"
            self._answer(200, {"id": tail[-2], "state": state, "warnings": []})

    def _choices(self, document: Json, _: list[str]) -> None:
        self._add("choice", document["choices"])

    def _transitions(self, document: Json, _: list[str]) -> None:
        self._add("transition", document["transitions"])

    def _add(self, kind: str, records: list[Json]) -> None:
        for number, record in enumerate(records):
            if "wrong" in record["observation"]:
                self._problem(422, "is not a field", field=f"{kind}s[{number}].observation.wrong")
                return
        new = self.server.journal.add({f"{kind} {record['id']}": record for record in records})
        if new is None:
            self._problem(409, "an id was used for another record")
        else:
            counts = {"recorded": sum(new), "repeated": len(new) - sum(new)}
            self._answer(200, counts | ({"warnings": []} if kind == "transition" else {}))

    def _ranking(self, question: Json) -> Json:
        """Rank by the number ``value`` of each action."""
        values = [action.get("value", 0.0) for action in question["actions"]]
        order = sorted(range(len(values)), key=lambda position: -values[position])
        return {
            "agent": "qa",
            "version": "7",
            "order": order,
            "chances": values,
            "improvements": [None] * len(values),
            "confidence": [0.5] * len(values),
            "warnings": [],
        }

    def _problem(self, status: int, detail: str, field: str | None = None) -> None:
        document: Json = {"type": "about:blank", "title": "refused", "status": status}
        document |= {"detail": detail} | ({} if field is None else {"field": field})
        self._answer(status, document, "application/problem+json")

    def _answer(self, status: int, document: Json, kind: str = "application/json") -> None:
        body = json.dumps(document).encode()
        version = "2" if self.server.fault() == "version" else "1"
        self.send_response(status)
        self.send_header("Genesis-Protocol", version)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Predictor(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.journal = Journal(folder / "journal.jsonl")
        address: Any = ("127.0.0.1", port)
        if port is None:
            self.address_family = socketserver.socket.AF_UNIX
            self.allow_reuse_address = False
            path = folder / "predict.sock"
            path.unlink(missing_ok=True)
            address = str(path)
        super().__init__(address, Handler)

    def fault(self) -> str:
        try:
            return (self.folder / "fault").read_text()
        except FileNotFoundError:
            return ""

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is not an error here."""


if __name__ == "__main__":
    predictor = Predictor(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    predictor.serve_forever()
