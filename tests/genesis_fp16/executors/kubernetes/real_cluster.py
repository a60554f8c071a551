"""Kubernetes' own programs in processes of this machine: etcd, API server, controllers."""

import json
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from benchmarks.measuring.ports import free_port
from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.kubernetes.api import ApiError, KubernetesApi
from genesis_fp16.executors.kubernetes.credentials import find_credentials
from genesis_fp16.executors.remote import EngineError
from genesis_fp16.settings.kubernetes import KubernetesSettings
from tests.genesis_fp16.executors.kubernetes.kubelet import Kubelet
from tests.patience import wait_until

NAMESPACE = "genesis-fp16"  # that of the manifests in deploy/
DEPLOY = Path(__file__).parents[4] / "deploy" / "kubernetes"
MANIFESTS = (
    "base/serviceaccount.yaml",
    "components/kubernetes-executor/role.yaml",
    "components/kubernetes-executor/rolebinding.yaml",
    "components/kubernetes-executor/networkpolicy.yaml",
)
CONTROLLERS = "job,garbagecollector,podgc,resourcequota,serviceaccount,ttl-after-finished"
VOLUME = "home-genesis-fp16-0"  # as the StatefulSet names it


class RealCluster:
    """One API server of the folder *programs*, with the Role of deploy/ for the daemon.

    Args:
        programs: Folder of ``etcd``, ``kube-apiserver`` and ``kube-controller-manager``.
        folder: For certificates, data and logs.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port, self._etcd, self._peer = (free_port() for _ in range(3))
        self._make_keys()
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        folder = self._folder
        self._admin = secrets.token_hex(16)
        (folder / "tokens.csv").write_text(f'{self._admin},admin,admin,"system:masters"\n')
        self._start(
            *("etcd", f"--data-dir={folder}/etcd", "--unsafe-no-fsync"),
            f"--listen-client-urls=http://127.0.0.1:{self._etcd}",
            f"--advertise-client-urls=http://127.0.0.1:{self._etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{self._peer}",
        )
        self.start_server()
        self.api = KubernetesApi(find_credentials(self._kubeconfig("admin", self._admin), None))
        wait_until(self._is_ready, f"the API server, see {folder}")
        self._start(
            *("kube-controller-manager", f"--kubeconfig={folder}/admin.json"),
            *(f"--controllers={CONTROLLERS}", "--leader-elect=false", "--secure-port=0"),
            *("--kube-api-qps=200", "--kube-api-burst=400"),
        )
        self._apply()
        self.config = self._kubeconfig("daemon", self._token_of_the_daemon())
        self.kubelet = Kubelet(self.api, NAMESPACE)

    def start_server(self) -> None:
        """Start the API server, whose objects are in etcd."""
        folder = self._folder
        self._start(
            *("kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self._etcd}"),
            *("--bind-address=127.0.0.1", f"--secure-port={self.port}"),
            *("--endpoint-reconciler-type=none", "--service-cluster-ip-range=10.0.0.0/24"),
            *(f"--tls-cert-file={folder}/ca.pem", f"--tls-private-key-file={folder}/key.key"),
            *(f"--token-auth-file={folder}/tokens.csv", "--authorization-mode=RBAC"),
            *(f"--cert-dir={folder}", "--service-account-issuer=https://kubernetes.default.svc"),
            f"--service-account-key-file={folder}/account.pem",
            f"--service-account-signing-key-file={folder}/account.key",
        )

    def kill_server(self) -> None:
        """Kill the API server; pods run on."""
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        """Stall the API server: connections are accepted and nothing is answered."""
        process = self._processes["kube-apiserver"]
        process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.send_signal(signal.SIGCONT)

    @contextmanager
    def full(self) -> Iterator[None]:
        self.kubelet.cordoned = True
        yield
        self.kubelet.cordoned = False

    def settings(self, **changes: Any) -> KubernetesSettings:
        values: dict[str, Any] = {
            "kubernetes_config": self.config,
            "kubernetes_image": "genesis-fp16:test",
            "kubernetes_volume_claim": VOLUME,
        }
        return KubernetesSettings(**{**values, **changes})

    def engine(self, home: Path, *, seconds: float = 30.0, **changes: Any) -> KubernetesEngine:
        return KubernetesEngine(self.settings(**changes), home, seconds=seconds)

    def path(self, resource: str, group: str = "") -> str:
        return f"/{f'apis/{group}' if group else 'api/v1'}/namespaces/{NAMESPACE}/{resource}"

    def pods_of(self, job: str) -> list[dict[str, Any]]:
        query = {"labelSelector": f"genesis-fp16/job={job}"}
        return list(self.api.get(self.path("pods"), **query).body["items"])

    def delete(self, job: str) -> None:
        """As ``kubectl delete job --force --grace-period=0``."""
        for pod in self.pods_of(job):
            name = pod["metadata"]["name"]
            self.api.delete(f"{self.path('pods')}/{name}", {"gracePeriodSeconds": 0})
        options = {"propagationPolicy": "Background"}
        self.api.delete(f"{self.path('jobs', 'batch/v1')}/{job}", options)

    def evict(self, job: str) -> None:
        """As ``kubectl drain``."""
        for pod in self.pods_of(job):
            name = pod["metadata"]["name"]
            body = {"kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
            self.api.post(f"{self.path('pods')}/{name}/eviction", {**self._policy(), **body})

    def close(self) -> None:
        kubelet = getattr(self, "kubelet", None)
        if kubelet is not None:
            kubelet.close()
        for name in reversed([*self._processes]):
            process = self._processes.pop(name)
            process.kill()
            process.wait()

    def _policy(self) -> dict[str, str]:
        """Version of the Eviction: v1 since 1.22."""
        minor = int(self.api.get("/version").body["minor"].rstrip("+"))
        return {"apiVersion": "policy/v1" if minor >= 22 else "policy/v1beta1"}

    def _start(self, name: str, *options: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            command = [str(self._programs / name), *options]
            self._processes[name] = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def _make_keys(self) -> None:
        names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        subject = ("-x509", "-days", "2", "-subj", "/CN=localhost", "-addext", names)
        for key, certificate in (("key", "ca"), ("account", "account")):
            files = ("-keyout", f"{key}.key", "-out", f"{certificate}.pem")
            command = ["openssl", "req", *subject, *curve, *files]
            subprocess.run(command, check=True, capture_output=True, cwd=self._folder)

    def _kubeconfig(self, user: str, token: str) -> Path:
        path = self._folder / f"{user}.json"
        server = f"https://127.0.0.1:{self.port}"
        cluster = {"server": server, "certificate-authority": str(self._folder / "ca.pem")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [
                {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
            ],
        }
        path.write_text(json.dumps(config))
        path.chmod(0o600)
        return path

    def _is_ready(self) -> bool:
        assert self._processes["kube-apiserver"].poll() is None, "the API server ended"
        with suppress(EngineError):
            self.api.get("/api/v1/namespaces/kube-system")
            return True
        return False

    def _apply(self) -> None:
        self.api.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for file in MANIFESTS:
            manifest = yaml.safe_load((DEPLOY / file).read_text())
            version, resource = manifest["apiVersion"], manifest["kind"].lower()
            resource = resource.replace("policy", "policie") + "s"
            self.api.post(self.path(resource, "" if version == "v1" else version), _named(manifest))
        claim = {
            "metadata": {"name": VOLUME},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "resources": {"requests": {"storage": "5Gi"}},
            },
        }
        self.api.post(self.path("persistentvolumeclaims"), claim)
        wait_until(self._has_default_account, f"the controllers, see {self._folder}")

    def _has_default_account(self) -> bool:
        with suppress(ApiError):
            self.api.get(self.path("serviceaccounts") + "/default")
            return True
        return False

    def _token_of_the_daemon(self) -> str:
        request = {"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}}
        path = self.path("serviceaccounts") + "/genesis-fp16/token"
        return str(self.api.post(path, request).body["status"]["token"])


def _named(manifest: dict[str, Any]) -> dict[str, Any]:
    """The manifest as kustomize leaves it: subjects are in the namespace."""
    for subject in manifest.get("subjects", []):
        subject["namespace"] = NAMESPACE
    return manifest
