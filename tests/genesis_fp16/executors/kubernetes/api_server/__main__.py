"""A Kubernetes API server for tests, with one node that runs the pods' commands as processes.

``python api_server CERTIFICATE KEY TOKEN`` prints its port, and serves until SIGTERM. Requests
below ``/_test/`` make it misbehave: see `Behaviour`.
"""

import json
import re
import signal
import ssl
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from objects import Objects, RefusalError, check_job, now
from pods import Node

NAMESPACE = "training"
USER = f"system:serviceaccount:{NAMESPACE}:genesis-fp16"
RESOURCE = re.compile(
    r"/(?:api|apis/(?P<group>[\w.]+))/v1/namespaces/(?P<namespace>[\w-]+)"
    r"/(?P<resource>[a-z]+)(?:/(?P<name>[\w.-]+))?"
)
VERBS = {"POST": "create", "PUT": "update"}


class Behaviour:
    """What the server does to requests, as a test has asked for.

    ``fault``: ``status`` answers with that code; ``slow`` waits; ``drip`` sends a byte now and
    then; ``cut`` does what was asked and closes the connection in the middle of the answer;
    ``html`` answers 200 with a page; ``down`` closes the connection and does nothing. Each for
    ``count`` requests, of ``method`` if it is given.
    """

    def __init__(self):
        self.lock = threading.Lock()
        self.fault, self.left, self.denied = {}, 0, set()
        self.version = {"major": "1", "minor": "34", "gitVersion": "v1.34.1"}
        self.warning, self.clock_offset, self.requests = "", 0.0, []

    def next_fault(self, method, path):
        with self.lock:
            self.requests.append(f"{method} {path}")
            if self.left and self.fault.get("method", method) == method:
                self.left -= 1
                return self.fault
            return {}


class Cluster:
    """The server's state and what its requests do."""

    def __init__(self):
        self.objects, self.behaviour = Objects(), Behaviour()
        self.node = Node(self.objects)
        claim = {"metadata": {"name": "home"}, "spec": {"accessModes": ["ReadWriteMany"]}}
        claim = self.objects.create("persistentvolumeclaims", claim)
        claim["status"] = {"phase": "Bound"}

    def answer(self, method, path, query, body):
        if path == "/version":
            return 200, self.behaviour.version
        if path.endswith("/selfsubjectaccessreviews"):
            wanted = body["spec"]["resourceAttributes"]
            denied = f"{wanted['verb']} {wanted['resource']}" in self.behaviour.denied
            return 201, {**body, "status": {"allowed": not denied}}
        match = RESOURCE.fullmatch(path)
        if match is None:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        resource, name = match["resource"], match["name"]
        self._authorize(method, match, name)
        if match["namespace"] != NAMESPACE and method == "POST":
            raise RefusalError(404, "NotFound", f'namespaces "{match["namespace"]}" not found')
        with self.objects.lock:
            return self._handle(method, resource, name, query, body)

    def _authorize(self, method, match, name):
        verb = VERBS.get(method)
        if method == "GET":
            verb = "get" if name else "list"
        elif method == "DELETE":
            verb = "delete" if name else "deletecollection"
        if f"{verb} {match['resource']}" in self.behaviour.denied:
            message = (
                f'{match["resource"]} is forbidden: User "{USER}" cannot {verb} resource '
                f'"{match["resource"]}" in API group "{match["group"] or ""}" in the namespace '
                f'"{match["namespace"]}"'
            )
            raise RefusalError(403, "Forbidden", message)

    def _handle(self, method, resource, name, query, body):
        if method == "GET" and name:
            return 200, self.objects.get(resource, name)
        if method == "GET":
            return 200, self._page(resource, query)
        if method == "PUT":
            return 200, self.objects.replace(resource, name, body)
        if method == "POST":
            dry_run = query.get("dryRun") == "All"
            if resource == "jobs":
                check_job(body)
            made = self.objects.create(resource, body, dry_run=dry_run)
            if resource == "jobs" and not dry_run:
                self.node.start_pod(made)
            return 201, made
        if resource == "jobs":
            return 200, self.node.delete_job(name, body)
        for pod in self.objects.list("pods", query.get("labelSelector", "")):
            self.node.delete_pod(pod, body.get("gracePeriodSeconds"))
        return 200, {"kind": "Status", "status": "Success"}

    def _page(self, resource, query):
        objects = self.objects.list(resource, query.get("labelSelector", ""))
        if resource == "events":
            uid = re.search(r"involvedObject\.uid=([\w-]+)", query.get("fieldSelector", ""))
            objects = [event for event in objects if event["involvedObject"]["uid"] == uid[1]]
        start = int(query.get("continue") or 0)
        end = start + int(query.get("limit") or 500)
        metadata = {"continue": str(end)} if end < len(objects) else {}
        return {"kind": "List", "metadata": metadata, "items": objects[start:end]}

    def misbehave(self, what, body):
        """``/_test/<what>``."""
        if what == "set":
            with self.behaviour.lock:
                for key, value in body.items():
                    setattr(self.behaviour, key, set(value) if key == "denied" else value)
        elif what == "node":
            for key, value in body.items():
                setattr(self.node, key, value)
        elif what == "requests":
            with self.behaviour.lock:
                requests, self.behaviour.requests = self.behaviour.requests, []
            return {"requests": requests}
        else:
            with self.objects.lock:
                return getattr(self, f"_{what}")(**body) or {}
        return {}

    def _pods_of(self, job):
        return [
            pod
            for pod in self.objects.list("pods")
            if pod["metadata"]["labels"].get("batch.kubernetes.io/job-name") == job
        ]

    def _forget(self, job):
        """Lose the Job and its pods; their processes go on."""
        self.objects.remove("jobs", job)
        for pod in self._pods_of(job):
            self.objects.remove("pods", pod["metadata"]["name"])

    def _claim(self, job, condition):
        """Say that the Job has ended; its pod is forgotten, its process goes on."""
        for pod in self._pods_of(job):
            self.objects.remove("pods", pod["metadata"]["name"])
        self.objects.get("jobs", job)["status"] |= {
            "active": 0,
            "conditions": [{"type": condition, "status": "True"}],
        }

    def _duplicate(self, job):
        """Start a second pod of the Job, as a controller with an old view does."""
        self.node.start_pod(self.objects.get("jobs", job))

    def _evict(self, job):
        """Drain the node: the pod is told why, then deleted with its grace period."""
        for pod in self._pods_of(job):
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByAPI"}
            pod["status"].setdefault("conditions", []).append(condition)
            self.node.delete_pod(pod)

    def _refuse_pods(self, job, message):
        """What a quota does: the Job exists, an event says why it has no pod."""
        self._forget_pods(job)
        uid = self.objects.get("jobs", job)["metadata"]["uid"]
        self.objects.create(
            "events",
            {
                "metadata": {"name": f"{job}.1"},
                "involvedObject": {"uid": uid},
                "type": "Warning",
                "reason": "FailedCreate",
                "message": message,
                "lastTimestamp": now(),
            },
        )

    def _power_cut(self, job):
        """Kill the processes of the Job; what the API server learns of it is the node's affair."""
        for pod in self._pods_of(job):
            self.node.kill_container(pod)

    def _forget_pods(self, job):
        for pod in self._pods_of(job):
            self.objects.remove("pods", pod["metadata"]["name"])

    def _processes(self):
        containers = list(self.node.containers.values())
        return {"alive": sum(container.exit_code() is None for container in containers)}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    cluster: Cluster
    token: str

    def _serve(self):
        length = int(self.headers.get("Content-Length") or 0)
        text = self.rfile.read(length)
        body = json.loads(text) if text else {}
        parts = urlsplit(self.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            return self._refuse(RefusalError(401, "Unauthorized", "Unauthorized"))
        if parts.path.startswith("/_test/"):
            return self._send(200, self.cluster.misbehave(parts.path.split("/")[2], body))
        fault = self.cluster.behaviour.next_fault(self.command, self.path)
        time.sleep(fault.get("slow", 0))
        if "down" in fault:
            self.close_connection = True
            return None
        if status := fault.get("status"):
            return self._refuse(RefusalError(status, "Fault", fault.get("message", "a fault")))
        try:
            status, answer = self.cluster.answer(self.command, parts.path, query, body)
        except RefusalError as refusal:
            return self._refuse(refusal)
        return self._send(status, answer, fault)

    def _refuse(self, refusal):
        status = {"kind": "Status", "status": "Failure", "code": refusal.status}
        self._send(refusal.status, {**status, "reason": refusal.reason, "message": refusal.message})

    def _send(self, status, body, fault=()):
        with self.cluster.objects.lock:
            content = json.dumps(body).encode()
        if "html" in fault:
            content = b"<html>Sign in to the proxy</html>"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if warning := self.cluster.behaviour.warning:
            self.send_header("Warning", f'299 - "{warning}"')
        self.end_headers()
        if "cut" in fault:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            self.connection.close()
        elif "drip" in fault:
            for byte in content:
                self.wfile.write(bytes([byte]))
                time.sleep(fault["drip"])
        else:
            self.wfile.write(content)

    def date_time_string(self, timestamp=None):
        return super().date_time_string(time.time() + self.cluster.behaviour.clock_offset)

    def log_message(self, *_):
        pass

    do_GET = do_POST = do_PUT = do_DELETE = _serve


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, tls):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tls = tls

    def finish_request(self, request, client_address):
        """In the thread of the request: a client that is slow to shake hands holds up no other."""
        with self.tls.wrap_socket(request, server_side=True) as wrapped:
            super().finish_request(wrapped, client_address)

    def handle_error(self, *request):
        if not isinstance(sys.exc_info()[1], OSError):  # that is a client that went away
            super().handle_error(*request)


def main():
    certificate, key, Handler.token = sys.argv[1:]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    Handler.cluster = Cluster()
    server = Server(tls)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
    finally:
        Handler.cluster.node.close()


main()
