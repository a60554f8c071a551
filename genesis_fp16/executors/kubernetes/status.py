"""What a Job and its pods tell about an attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genesis_fp16.executors.remote import JobState, JobStatus

Object = Mapping[str, Any]

_ENDED = {"Succeeded": JobState.SUCCEEDED, "Failed": JobState.FAILED}
_LONGEST_REASON = 300  # characters
_REMEDIES = {  # part of a reason to the remedy
    "OOMKilled": "out of memory: raise GENESIS_JOB_MEMORY_MIB",
    "Evicted": "its node ran short: ask for what it needs in GENESIS_JOB_MEMORY_MIB",
    "Eviction": "the pod was evicted, as when a node is drained; it goes on elsewhere",
    "Preempt": "a pod of higher priority took its place; it goes on when there is room",
    "TaintManager": "its node was lost or tainted; it goes on elsewhere",
    "NodeLost": "its node was lost; it goes on elsewhere",
    "PodGC": "its node was removed; it goes on elsewhere",
    "TerminationByKubelet": "its node shut down or ran short; it goes on elsewhere",
    "NodeShutdown": "its node shut down; it goes on elsewhere",
    "DeadlineExceeded": "it took longer than GENESIS_JOB_MINUTES",
}
_IN_PROGRESS = ("ContainerCreating", "PodInitializing")


def job_status(job: Object, pods: Sequence[Object]) -> JobStatus:
    """Status of *job*, which exists, from the *pods* that it has.

    A pod that has not ended may still write, even if the Job counts it as failed: pods come first.
    """
    living = [pod for pod in pods if _phase(pod) not in _ENDED]
    if living:
        return _status_of_living(living)
    if job["metadata"].get("deletionTimestamp"):
        return JobStatus(state=JobState.NOT_FOUND, reason="the Job was deleted")
    return _status_of_ended(job, pods) or JobStatus(
        state=JobState.WAITING,
        reason="the Job is suspended, perhaps by a queue"
        if job.get("spec", {}).get("suspend")
        else "the Job has no pod yet",
    )


def _status_of_living(pods: Sequence[Object]) -> JobStatus:
    for pod in pods:
        if _phase(pod) == "Unknown":
            return JobStatus(state=JobState.UNKNOWN, reason=f"{_name(pod)}: its node is silent")
    if any(_has_started(pod) for pod in pods):
        return JobStatus(state=JobState.RUNNING)
    return JobStatus(state=JobState.WAITING, reason=_why_pending(pods[0]))


def _status_of_ended(job: Object, pods: Sequence[Object]) -> JobStatus | None:
    for kind, state in (("Failed", JobState.FAILED), ("Complete", JobState.SUCCEEDED)):
        if condition := _condition(job, kind):
            words = _last_words(pods) if state is JobState.FAILED else ""
            reason = ": ".join(filter(None, (words, _text(condition))))
            return JobStatus(state=state, reason=reason)
    if not pods:
        return None
    phases = {_ENDED[_phase(pod)] for pod in pods}  # the Job's controller has not come round yet
    state = JobState.FAILED if JobState.FAILED in phases else JobState.SUCCEEDED
    return JobStatus(state=state, reason=_last_words(pods))


def _phase(pod: Object) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def _name(pod: Object) -> str:
    return f"pod {pod['metadata']['name']}"


def _has_started(pod: Object) -> bool:
    if _phase(pod) == "Running":
        return True
    containers = pod.get("status", {}).get("containerStatuses") or []
    return any(
        container.get("state", {}).keys() & {"running", "terminated"} for container in containers
    )


def _why_pending(pod: Object) -> str:
    """``ImagePullBackOff``, ``Unschedulable`` and the like, with Kubernetes' own explanation."""
    status = pod.get("status", {})
    lists = (status.get(key) or [] for key in ("initContainerStatuses", "containerStatuses"))
    waiting = [
        container.get("state", {}).get("waiting") or {} for group in lists for container in group
    ]
    for state in waiting:
        if state.get("reason") not in (None, *_IN_PROGRESS):
            return _text(state)
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _text(condition)
    for state in waiting:
        if state.get("reason"):
            return _text(state)
    return f"{_name(pod)} is pending"


def _last_words(pods: Sequence[Object]) -> str:
    """Why pods that have ended did so, with the remedy; empty if they do not tell.

    Kubernetes says it in several places, and any of them may be empty: a container's state, its
    last state, the pod's conditions, the pod's own reason. What was killed for memory comes first,
    since the others follow from it.
    """
    ended = [
        container.get(key, {}).get("terminated") or {}
        for pod in pods
        for group in ("containerStatuses", "initContainerStatuses")
        for container in pod.get("status", {}).get(group) or []
        for key in ("state", "lastState")
    ]
    disrupted = [
        condition
        for pod in pods
        for condition in pod.get("status", {}).get("conditions") or []
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True"
    ]
    killed = [state for state in ended if state.get("reason") == "OOMKilled"]
    by_reason = [pod["status"] for pod in pods if pod.get("status", {}).get("reason")]
    failed = [state for state in ended if state.get("exitCode") or state.get("signal")]
    for source in (*killed, *disrupted, *by_reason, *failed):
        reason = str(source.get("reason") or "the container ended")
        code = source.get("exitCode")
        words = _text({"reason": reason, "message": source.get("message")})
        words += "" if code is None else f", exit code {code}"
        remedy = next((text for name, text in _REMEDIES.items() if name in reason), "")
        return f"{words}; {remedy}" if remedy else words
    return ""


def _condition(job: Object, kind: str) -> Object | None:
    for condition in job.get("status", {}).get("conditions") or []:
        if condition.get("type") == kind and condition.get("status") == "True":
            return dict(condition)
    return None


def _text(source: Object) -> str:
    parts = [str(source[key]) for key in ("reason", "message") if source.get(key)]
    text = " ".join(": ".join(parts).split())
    return text if len(text) <= _LONGEST_REASON else text[: _LONGEST_REASON - 1] + "…"
