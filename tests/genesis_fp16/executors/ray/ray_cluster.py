"""A real Ray cluster of two nodes on this machine, with token authentication, for the tests.

The nodes belong to a child process, this file as a program, so that the tests themselves never
import Ray: its threads, its files and its warnings stay with the child.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import psutil

if __name__ != "__main__":  # the child process has another path for its imports
    from benchmarks.measuring.ports import free_port
    from genesis_fp16.executors.ray import RayEngine
    from genesis_fp16.executors.remote import RemoteExecutor
    from tests.genesis_fp16.executors.contract import remote_executor
    from tests.patience import wait_until

MISSING = "ray is not installed: make everything installs it"
STARTS = 3  # a crowded machine exceeds limits that are fixed in Ray
START_SECONDS = 150  # after which one that says nothing, or takes no job, is started again
IS_INSTALLED = find_spec("ray") is not None


class RayCluster:
    """Two nodes: the head, with the custom resource ``head``, and a worker.

    Args:
        cpus: Of each node; claimed, not there.
        variables: Environment of the nodes, and so of their jobs.

    Attributes:
        address: URL of the Jobs API.
        token_file: File of the token that the cluster asks for.
        plugins: Folder on the Python path of all jobs.
    """

    def __init__(self, cpus: int = 1, variables: Mapping[str, str] | None = None) -> None:
        self._cpus, self._variables = cpus, dict(variables or {})
        self._folder = Path(tempfile.mkdtemp(prefix="ray-"))  # a path of a socket must be short
        self.plugins = self._folder / "plugins"
        self.plugins.mkdir()
        self.token_file = self._folder / "token"
        self.token_file.write_text(secrets.token_hex(32))
        self.token_file.chmod(0o600)
        self._port = free_port()
        self.address = f"http://127.0.0.1:{self._port}"
        self._program: subprocess.Popen[str] | None = None
        self.start()
        self._line = _Line(self._port)
        threading.Thread(target=self._line.serve_forever, args=(0.05,), daemon=True).start()

    def start(self, machines: int = 2) -> None:
        """Start the nodes; a cluster that was killed comes back empty, at the same address."""
        for attempt in range(1, STARTS + 1):
            with (self._folder / "cluster.log").open("ab") as log:
                self._program = subprocess.Popen(
                    [sys.executable, __file__, *map(str, (self._port, machines, self._cpus))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                    env=os.environ | self._environment(),
                )
            try:
                self._answer()
                wait_until(self._takes_jobs, "Ray to take jobs", most_seconds=START_SECONDS)
                return
            except (RuntimeError, AssertionError):
                self.kill_head()
                if attempt == STARTS:
                    raise

    def _takes_jobs(self) -> bool:
        """Whether the head takes a job; it is slow with the first one, and may refuse it."""
        with suppress(OSError):
            self.submit(f"first-{secrets.token_hex(4)}", "true")
            return True
        return False

    def _environment(self) -> dict[str, str]:
        return self._variables | {
            "PYTHONPATH": str(self.plugins),
            "RAY_TMPDIR": str(self._folder),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self.token_file),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_JOB_START_TIMEOUT_SECONDS": "20",  # instead of 15 minutes
            "RAY_health_check_period_ms": "500",
            "RAY_DASHBOARD_STARTUP_TIMEOUT_S": "300",
        }

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        """As a daemon has it that has just started."""
        return remote_executor(self.engine(), worker)

    def engine(self) -> RayEngine:
        """A client whose line to the cluster `unreachable` cuts."""
        return RayEngine(self.line_address, self.token_file)

    @property
    def line_address(self) -> str:
        """URL of the Jobs API over a line that `unreachable` cuts."""
        return f"http://127.0.0.1:{self._line.server_address[1]}"

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Cut the line; the cluster goes on."""
        self._line.is_cut = True
        try:
            yield
        finally:
            self._line.is_cut = False

    @contextmanager
    def full(self) -> Iterator[None]:
        """Occupy all CPUs of both machines."""
        names = [f"occupied-{secrets.token_hex(4)}" for _ in range(2 * self._cpus)]
        for name in names:
            self.occupy(name)
        try:
            yield
        finally:
            for name in names:
                self.delete(name)

    def occupy(self, name: str, **where: object) -> None:
        """Run a job of one CPU, until it is deleted, where the resources *where* are."""
        request = {"submission_id": name, "entrypoint": "sleep 1000", "entrypoint_num_cpus": 1}
        request |= {"entrypoint_resources": where}
        self._ask_api("POST", "", request)

        def runs() -> bool:
            status = self.job(name)["status"]
            if status == "FAILED":  # a crowded machine exceeds the limit of its start
                self._ask_api("DELETE", name)
                self._ask_api("POST", "", request)
            return bool(status == "RUNNING")

        wait_until(runs, f"{name} to start")

    def submit(self, name: str, entrypoint: str) -> None:
        """Run a job, of no CPU."""
        self._ask_api("POST", "", {"submission_id": name, "entrypoint": entrypoint})

    def is_on_head(self, name: str) -> bool:
        """Whether a job runs on the head and not on the worker."""
        nodes = json.loads(self._ask_url("/api/v0/nodes"))["data"]["result"]["result"]
        [head] = [node["node_id"] for node in nodes if node["resources_total"].get("head")]
        return bool(self.job(name)["driver_node_id"] == head)

    def job(self, name: str) -> dict[str, Any]:
        """What Ray says about a job."""
        job: dict[str, Any] = json.loads(self._ask_api("GET", name))
        return job

    def delete(self, name: str) -> None:
        """Stop a job and delete its record, as ``ray job stop`` and ``ray job delete`` do."""
        self._ask_api("POST", f"{name}/stop")
        wait_until(lambda: self.job(name)["status"] == "STOPPED", f"{name} to stop")
        self._ask_api("DELETE", name)

    def _ask_api(self, method: str, path: str, body: dict[str, Any] | None = None) -> str:
        return self._ask_url(f"/api/jobs/{path}", method, body)

    def _ask_url(self, path: str, method: str = "GET", body: dict[str, Any] | None = None) -> str:
        content = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.address}{path}", content, method=method)
        request.add_header("Content-Type", "application/json")
        request.add_header("Authorization", f"Bearer {self.token_file.read_text()}")
        with urlopen(request, timeout=60) as answer:
            return str(answer.read().decode())

    def kill_worker(self) -> None:
        """Kill all processes of the worker node at once, with the jobs on it, as a power cut."""
        self._ask("worker_pid")
        worker = psutil.Process(int(self._answer()))
        _kill_tree(worker)
        self._ask("forget_worker")
        self._answer()

    def add_worker(self, cpus: int | None = None) -> None:
        """Add a worker node, as large as the others or of *cpus* CPUs."""
        self._ask(f"add_worker {cpus or self._cpus}")
        self._answer()

    def kill_head(self) -> None:
        """Kill every process of the cluster at once, with all jobs."""
        program, self._program = self._program, None
        if program is None:
            return
        _kill_tree(psutil.Process(program.pid))
        for process in psutil.process_iter(["cmdline"]):  # reapers leave the tree
            if any(str(self._folder) in part for part in process.info["cmdline"] or ()):
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        for pipe in (program.stdin, program.stdout):
            assert pipe is not None
            pipe.close()  # what still holds the other end is not waited for
        program.wait(60)

    def stop(self) -> None:
        """Kill the cluster and remove its files."""
        self._line.shutdown()
        self._line.server_close()
        self.kill_head()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, what: str) -> None:
        assert self._program is not None
        assert self._program.stdin is not None
        self._program.stdin.write(what + "\n")
        self._program.stdin.flush()

    def _answer(self) -> Any:
        assert self._program is not None
        assert self._program.stdout is not None
        with _killed_after(START_SECONDS, self._program):
            for line in self._program.stdout:
                if line.startswith("answer "):
                    return json.loads(line.removeprefix("answer "))
        raise RuntimeError(f"the Ray cluster ended:\n{self._log()}")

    def _log(self) -> str:
        return (self._folder / "cluster.log").read_text()[-4000:]


class _Line(socketserver.ThreadingTCPServer):
    """Passes connections on to a port of this machine, unless it is cut."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Pass)
        self.port, self.is_cut = port, False


class _Pass(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        if self.server.is_cut:
            return
        address = ("127.0.0.1", self.server.port)
        with suppress(OSError), socket.create_connection(address) as server:
            ends = {self.request: server, server: self.request}
            while True:
                for end in select.select([*ends], [], [])[0]:
                    if not (data := end.recv(65536)):
                        return
                    ends[end].sendall(data)


@contextmanager
def _killed_after(seconds: float, program: subprocess.Popen[str]) -> Iterator[None]:
    """Kill *program* if what is done meanwhile takes longer: reading from it has no limit."""
    timer = threading.Timer(seconds, program.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _kill_tree(root: psutil.Process) -> None:
    """Stop the tree first, so that none of it can react to the death of another."""
    root.suspend()
    tree = [root, *root.children(recursive=True)]
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(tree[1:], timeout=30)


def _main() -> None:
    from ray.cluster_utils import Cluster

    port, machines, cpus = map(int, sys.argv[1:])
    common = {"num_cpus": cpus, "object_store_memory": 80 * 2**20}
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            **common,
            "resources": {"head": 1.0},
            "include_dashboard": True,
            "dashboard_host": "127.0.0.1",
            "dashboard_port": port,
            "dashboard_agent_listen_port": 0,  # its default is one for all clusters of a machine
            "include_log_monitor": False,
            "no_monitor": True,  # it would add machines
        },
    )
    worker = cluster.add_node(**common) if machines > 1 else None
    _say(None)
    for line in sys.stdin:
        what, *rest = line.split()
        if what == "worker_pid":
            _say(worker.all_processes["raylet"][0].process.pid)
        elif what == "forget_worker":
            cluster.remove_node(worker, allow_graceful=False)
            _say(None)
        elif what == "add_worker":
            worker = cluster.add_node(**common | {"num_cpus": int(rest[0])})
            _say(None)
    cluster.shutdown()


def _say(what: object) -> None:
    sys.stdout.write("answer " + json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
