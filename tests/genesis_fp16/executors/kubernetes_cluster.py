"""A Kubernetes API server in a process of its own, on a TLS socket; see `kubernetes/api_server`."""

import base64
import http.client
import json
import shutil
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.remote import RemoteExecutor
from genesis_fp16.settings.kubernetes import KubernetesSettings
from tests.genesis_fp16.executors.contract import remote_executor

SERVER = Path(__file__).parent / "kubernetes" / "api_server"
TOKEN = "a-token-of-the-tests"
NAMESPACE = "training"


class KubernetesCluster:
    """The server, and what a test can make it do."""

    def __init__(self, folder: Path) -> None:
        self.certificate, key = folder / "ca.pem", folder / "key.pem"
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        options = ("-days", "2", "-subj", "/CN=localhost", "-addext", names)
        files = ("-keyout", key, "-out", self.certificate)
        command = ["openssl", "req", "-x509", *curve, *options, *files]
        subprocess.run(command, check=True, capture_output=True)
        command = [sys.executable, str(SERVER), str(self.certificate), str(key), TOKEN]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        self.config = folder / "kubeconfig.json"
        self.config.write_text(json.dumps(self.kubeconfig()))
        self.config.chmod(0o600)

    def kubeconfig(self, **user: str) -> dict[str, Any]:
        authority = base64.b64encode(self.certificate.read_bytes()).decode()
        server = f"https://127.0.0.1:{self.port}"
        cluster = {"server": server, "certificate-authority-data": authority}
        context = {"cluster": "c", "user": "u", "namespace": NAMESPACE}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": user or {"token": TOKEN}}],
            "contexts": [{"name": "test", "context": context}],
        }

    def settings(self, **changes: Any) -> KubernetesSettings:
        values: dict[str, Any] = {
            "kubernetes_config": self.config,
            "kubernetes_image": "genesis-fp16:test",
            "kubernetes_volume_claim": "home",
        }
        return KubernetesSettings(**{**values, **changes})

    def engine(self, home: Path, *, seconds: float = 30.0, **changes: Any) -> KubernetesEngine:
        return KubernetesEngine(self.settings(**changes), home, seconds=seconds)

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """A request of the test itself, never disturbed by a fault."""
        tls = ssl.create_default_context(cafile=str(self.certificate))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=120, context=tls)
        try:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            connection.request(method, path, json.dumps(body or {}), headers)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def set(self, **behaviour: Any) -> None:
        """Change what the server does to requests; see `Behaviour` there."""
        self.ask("POST", "/_test/set", behaviour)

    def fault(self, count: int = 1_000_000, **fault: Any) -> None:
        """Disturb the next *count* requests."""
        self.set(fault=fault, left=count)

    def node(self, **state: Any) -> None:
        """Change the node: ``gpus``, ``cordoned``, ``silent``, ``environ`` or ``secrets``."""
        self.ask("POST", "/_test/node", state)

    def job(self, what: str, name: str, **more: Any) -> Any:
        """Forget, claim, duplicate, evict or power_cut a Job, or refuse its pods."""
        return self.ask("POST", f"/_test/{what}", {"job": name, **more})

    def requests(self) -> list[str]:
        """Requests since the last call."""
        return list(self.ask("POST", "/_test/requests")["requests"])

    def processes(self) -> int:
        """Containers whose first process lives."""
        return int(self.ask("POST", "/_test/processes")["alive"])

    def objects(self, path: str) -> list[dict[str, Any]]:
        """A list, such as ``/api/v1/namespaces/training/pods``."""
        return list(self.ask("GET", path)["items"])

    def behave(self) -> None:
        """Undo what tests have asked for."""
        self.set(fault={}, left=0, denied=[], warning="", clock_offset=0.0)
        self.set(version={"major": "1", "minor": "34", "gitVersion": "v1.34.1"})
        self.node(gpus=4, silent=False, cordoned=False)

    @property
    def variables(self) -> dict[str, object]:
        """Settings of a daemon that uses this cluster."""
        return {
            "GENESIS_EXECUTOR": "kubernetes",
            "GENESIS_KUBERNETES_CONFIG": self.config,
            "GENESIS_KUBERNETES_IMAGE": "genesis-fp16:test",
            "GENESIS_KUBERNETES_VOLUME_CLAIM": "home",
        }

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            assert self.process.stdout is not None
            self.process.stdout.close()


class JobCluster:
    """The API server as the contract damages it."""

    def __init__(self, server: KubernetesCluster, home: Path) -> None:
        self.server, self._home = server, home

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        return remote_executor(self.engine(), worker)

    def engine(self) -> KubernetesEngine:
        return self.server.engine(self._home)

    def delete(self, job: str) -> None:
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=genesis-fp16/job={job}"
        self.server.ask("DELETE", pods, {"gracePeriodSeconds": 0})
        self.server.ask("DELETE", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/{job}")

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.server.fault(down=True)
        try:
            yield
        finally:
            self.server.behave()

    @contextmanager
    def full(self) -> Iterator[None]:
        self.server.node(cordoned=True)
        try:
            yield
        finally:
            self.server.node(cordoned=False)


@pytest.fixture(scope="session")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Any:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    cluster = KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))
    yield cluster
    cluster.close()
