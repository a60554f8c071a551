"""The objects of the cluster, with the rules of the API server that the daemon relies on."""

import re
import threading
import time
import uuid

NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class RefusalError(Exception):
    """A request that is refused: HTTP status, Kubernetes' reason, message."""

    def __init__(self, status, reason, message):
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Objects:
    """Objects by resource and name; every change gives a new resource version."""

    def __init__(self):
        self.lock = threading.RLock()
        self.found = {}  # (resource, name) -> object
        self._version = 100

    def create(self, resource, body, *, dry_run=False):
        with self.lock:
            name = body.get("metadata", {}).get("name", "")
            if not NAME.fullmatch(name):
                raise RefusalError(422, "Invalid", f'{resource} "{name}" is invalid: metadata.name')
            if (resource, name) in self.found:
                raise RefusalError(409, "AlreadyExists", f'{resource} "{name}" already exists')
            made = {**body, "metadata": {**body["metadata"]}}
            made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            made.setdefault("status", {})
            if not dry_run:
                self.found[resource, name] = made
                self.touch(made)
            return made

    def touch(self, changed):
        with self.lock:
            self._version += 1
            changed["metadata"]["resourceVersion"] = str(self._version)

    def get(self, resource, name):
        with self.lock:
            if (resource, name) not in self.found:
                raise RefusalError(404, "NotFound", f'{resource} "{name}" not found')
            return self.found[resource, name]

    def replace(self, resource, name, body):
        with self.lock:
            known = self.get(resource, name)
            version = body.get("metadata", {}).get("resourceVersion")
            if version and version != known["metadata"]["resourceVersion"]:
                message = (
                    f'Operation cannot be fulfilled on {resource} "{name}": '
                    "the object has been modified"
                )
                raise RefusalError(409, "Conflict", message)
            self.found[resource, name] = {**body, "metadata": {**known["metadata"]}}
            self.touch(self.found[resource, name])
            return self.found[resource, name]

    def remove(self, resource, name):
        with self.lock:
            self.found.pop((resource, name), None)

    def list(self, resource, selector=""):
        wanted = dict(part.split("=", 1) for part in selector.split(",") if part)
        with self.lock:
            return [
                known
                for (kind, _), known in sorted(self.found.items())
                if kind == resource
                and wanted.items() <= (known["metadata"].get("labels") or {}).items()
            ]


def check_job(job):
    """Kubernetes' own validation, as far as it forbids what the daemon might get wrong."""
    name, spec = job.get("metadata", {}).get("name", ""), job.get("spec", {})
    pod = spec.get("template", {}).get("spec", {})
    wrong = ""
    if len(name) > 63:
        wrong = "metadata.name: must be no more than 63 characters"
    elif pod.get("restartPolicy") not in ("Never", "OnFailure"):
        wrong = "spec.template.spec.restartPolicy: Required value"
    elif spec.get("podFailurePolicy") and (
        pod["restartPolicy"] != "Never" or spec.get("podReplacementPolicy") != "Failed"
    ):
        wrong = "spec.podReplacementPolicy: only Failed is allowed with podFailurePolicy"
    elif not pod.get("containers") or not pod["containers"][0].get("image"):
        wrong = "spec.template.spec.containers[0].image: Required value"
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in pod.get("containers", []):
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                wrong = f"volumeMounts: not found: {mount['name']}"
    if wrong:
        raise RefusalError(422, "Invalid", f'Job.batch "{name}" is invalid: {wrong}')
