"""A stand-in for kubelet and scheduler: it runs a real API server's pods as processes."""

import threading
from typing import Any

import structlog

from genesis_fp16.executors.kubernetes.api import ApiError, KubernetesApi
from genesis_fp16.executors.remote import EngineError
from tests.genesis_fp16.executors.kubernetes.api_server.container import Container

TICK_SECONDS = 0.05
NODE = "n1"

log = structlog.get_logger()


class Kubelet:
    """Binds the pods of *namespace* to one node and runs them until `close`.

    Attributes:
        cordoned: Whether new pods wait.
        silent: Whether the node is lost: it runs what it runs and hears and reports nothing.
        environ: Variables of every image.
    """

    def __init__(self, api: KubernetesApi, namespace: str) -> None:
        self.cordoned = self.silent = False
        self.environ: dict[str, str] = {}
        self.containers: dict[str, Container] = {}
        self._api, self._pods = api, f"/api/v1/namespaces/{namespace}/pods"
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        api.post("/api/v1/nodes", {"kind": "Node", "metadata": {"name": NODE}})
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()
        for container in self.containers.values():
            container.kill()

    def _work(self) -> None:
        while not self._is_closed.wait(TICK_SECONDS):
            if self.silent:
                continue
            try:
                items = self._api.get(self._pods).body["items"]
                pods = {pod["metadata"]["uid"]: pod for pod in items}
                for uid, pod in pods.items():
                    self._care(uid, pod)
            except EngineError as error:
                log.info("kubelet_refused", error=str(error))
                continue
            for uid in self.containers.keys() - pods.keys():
                self.containers.pop(uid).kill()

    def _care(self, uid: str, pod: dict[str, Any]) -> None:
        phase, is_leaving = pod["status"]["phase"], "deletionTimestamp" in pod["metadata"]
        container = self.containers.get(uid)
        code = None if container is None else container.exit_code()
        if container is None and phase == "Pending" and not is_leaving:
            self._start(uid, pod)
        elif code is not None and phase in ("Pending", "Running"):
            reason = "Completed" if code == 0 else "Error"
            ended = {"terminated": {"exitCode": code, "reason": reason}}
            self._report(pod, "Failed" if code else "Succeeded", ended)
        elif container is not None and code is None and is_leaving:
            container.end(pod["metadata"]["deletionGracePeriodSeconds"])
        elif container is not None and code is None and phase == "Pending":
            self._report(pod, "Running", {"running": {"startedAt": None}})
        elif is_leaving:
            name = pod["metadata"]["name"]
            self._api.delete(f"{self._pods}/{name}", {"gracePeriodSeconds": 0})

    def _start(self, uid: str, pod: dict[str, Any]) -> None:
        if self.cordoned:
            if not pod["status"].get("conditions"):
                why = "0/1 nodes are available: 1 is cordoned."
                condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
                pod["status"]["conditions"] = [{**condition, "message": why}]
                self._write(pod)
            return
        if "nodeName" not in pod["spec"]:
            name = pod["metadata"]["name"]
            target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
            body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}}
            self._api.post(f"{self._pods}/{name}/binding", {**body, "target": target})
        self.containers[uid] = Container(pod, self.environ)

    def _report(self, pod: dict[str, Any], phase: str, state: dict[str, Any]) -> None:
        [container] = pod["spec"]["containers"]
        status = {"name": container["name"], "image": container["image"], "imageID": ""}
        status |= {"ready": phase == "Running", "restartCount": 0, "state": state}
        pod["status"] = {"phase": phase, "containerStatuses": [status]}
        self._write(pod)

    def _write(self, pod: dict[str, Any]) -> None:
        """Write the status, however often the pod has changed since it was read."""
        pod["metadata"].pop("resourceVersion")
        try:
            self._api.put(f"{self._pods}/{pod['metadata']['name']}/status", pod)
        except ApiError as error:
            if error.status != 404:  # deleted meanwhile
                raise
