"""Scheduler, kubelet and the Job controller: they run a Job's command as a real process."""

import secrets
import threading
import time

from container import Container
from objects import RefusalError, now

GPU = "nvidia.com/gpu"
TICK_SECONDS = 0.02


class Node:
    """Runs pods."""

    def __init__(self, objects):
        self.objects = objects
        self.gpus = 4
        self.cordoned = False
        self.silent = False  # a node that is lost: it runs what it runs and reports nothing
        self.environ = {}  # variables of every image
        self.secrets = {}  # by name, the variables in each
        self.containers = {}  # by the uid of their pod

    def start_pod(self, job):
        template = job["spec"]["template"]
        suffix = secrets.token_hex(3)
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{job['metadata']['name']}-{suffix}",
                "labels": {
                    **template["metadata"].get("labels", {}),
                    "batch.kubernetes.io/job-name": job["metadata"]["name"],
                },
                "ownerReferences": [
                    {"kind": "Job", "uid": job["metadata"]["uid"], "controller": True}
                ],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }
        pod = self.objects.create("pods", pod)
        job["status"]["active"] = 1
        threading.Thread(target=self._live, args=(job, pod), daemon=True).start()

    def _live(self, job, pod):
        try:
            while (reason := self._obstacle(pod)) is not None:
                self._update(pod, reason)
                if "deletionTimestamp" in pod["metadata"]:
                    return self._end(job, pod, None)
                time.sleep(TICK_SECONDS)
            environ = dict(self.environ)
            for name in _secrets(pod):
                environ |= self.secrets[name]
            container = Container(pod, environ)
            self.containers[pod["metadata"]["uid"]] = container
            state = {"running": {"startedAt": now()}}
            self._update(pod, _container("worker", state, phase="Running"))
            self._end(job, pod, self._watch(pod, container))
        except OSError as error:
            self._end(job, pod, 128, str(error))

    def _obstacle(self, pod):
        """The status of a pod that cannot start yet; None if it can."""
        [container] = pod["spec"]["containers"]
        wanted = int(container["resources"].get("limits", {}).get(GPU, 0))
        if self.cordoned or wanted > self.gpus:
            why = "node(s) were unschedulable" if self.cordoned else f"Insufficient {GPU}"
            message = f"0/2 nodes are available: 2 {why}."
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            return {"phase": "Pending", "conditions": [{**condition, "message": message}]}
        if "missing" in container["image"]:
            message = f'Back-off pulling image "{container["image"]}"'
            waiting = {"reason": "ImagePullBackOff", "message": message}
            return _container("worker", {"waiting": waiting}, phase="Pending")
        if missing := [name for name in _secrets(pod) if name not in self.secrets]:
            message = f'secret "{missing[0]}" not found'
            waiting = {"reason": "CreateContainerConfigError", "message": message}
            return _container("worker", {"waiting": waiting}, phase="Pending")
        return None

    def _watch(self, pod, container):
        """Wait for the container's end; pass a deletion on to it."""
        while (code := container.exit_code()) is None:
            with self.objects.lock:
                grace = pod["metadata"].get("deletionGracePeriodSeconds")
            if grace is not None:
                container.end(grace)
            time.sleep(TICK_SECONDS)
        return code

    def _update(self, pod, status):
        if not self.silent:
            with self.objects.lock:
                pod["status"] = {**pod["status"], **status}
                self.objects.touch(pod)

    def _end(self, job, pod, code, reason=""):
        with self.objects.lock:
            if self.silent:
                return
            phase = "Succeeded" if code == 0 else "Failed"
            ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
            state = {} if code is None else _container("worker", {"terminated": ended})
            self._update(pod, {**state, "phase": phase})
            if "deletionTimestamp" in pod["metadata"]:
                self.objects.remove("pods", pod["metadata"]["name"])
            self._end_job(job, pod, phase)

    def _end_job(self, job, pod, phase):
        """The Job's controller: no second pod, since backoffLimit is 0."""
        status = job["status"]
        status["active"] = 0
        counter = phase.lower()
        status[counter] = status.get(counter, 0) + 1
        disrupted = [
            condition
            for condition in pod["status"].get("conditions", [])
            if (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
        ]
        condition = {"type": "Complete" if phase == "Succeeded" else "Failed", "status": "True"}
        if phase == "Failed" and disrupted:
            condition |= {
                "reason": "PodFailurePolicy",
                "message": f"Pod {pod['metadata']['name']} has condition DisruptionTarget "
                "matching FailJob rule at index 0",
            }
        elif phase == "Failed":
            condition |= {
                "reason": "BackoffLimitExceeded",
                "message": "Job has reached the specified backoff limit",
            }
        status.setdefault("conditions", []).append(condition)
        self.objects.touch(job)
        if "deletionTimestamp" in job["metadata"]:
            self.objects.remove("jobs", job["metadata"]["name"])

    def delete_pod(self, pod, grace=None):
        with self.objects.lock:
            if grace is None:
                grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
            pod["metadata"]["deletionTimestamp"] = now()
            pod["metadata"]["deletionGracePeriodSeconds"] = grace
            self.objects.touch(pod)
            if grace == 0 or pod["status"]["phase"] in ("Succeeded", "Failed"):
                self.objects.remove("pods", pod["metadata"]["name"])

    def delete_job(self, name, options):
        with self.objects.lock:
            job = self.objects.get("jobs", name)
            wanted = (options.get("preconditions") or {}).get("uid")
            if wanted and wanted != job["metadata"]["uid"]:
                raise RefusalError(
                    409, "Conflict", f"the UID in the precondition ({wanted}) differs"
                )
            uid = job["metadata"]["uid"]
            pods = [
                pod
                for pod in self.objects.list("pods")
                if pod["metadata"]["ownerReferences"][0]["uid"] == uid
            ]
            job["metadata"]["deletionTimestamp"] = now()
            self.objects.touch(job)
            alive = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
            if options.get("propagationPolicy") != "Foreground" or not alive:
                self.objects.remove("jobs", name)
            if options.get("propagationPolicy") != "Orphan":
                for pod in pods:
                    self.delete_pod(pod)
            return job

    def kill_container(self, pod):
        """Kill the pod's processes, if it has started; nobody asks them to end."""
        if container := self.containers.get(pod["metadata"]["uid"]):
            container.kill()

    def close(self):
        for container in self.containers.values():
            if container.exit_code() is None:
                container.kill()


def _secrets(pod):
    """Names of the Secrets whose entries become variables of the pod."""
    [container] = pod["spec"]["containers"]
    return [source["secretRef"]["name"] for source in container.get("envFrom", [])]


def _container(name, state, **more):
    return {**more, "containerStatuses": [{"name": name, "state": state, "restartCount": 0}]}
