"""What is made of a Job and its pods, in states that are hard to bring about."""

from typing import Any

import pytest

from genesis_fp16.executors.kubernetes.status import job_status
from genesis_fp16.executors.remote import JobState

WAITING = {"state": {"waiting": {"reason": "ContainerCreating"}}}
RUNNING = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
ENDED = {"state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}


def _job(*conditions: str, **more: Any) -> dict[str, Any]:
    listed = [{"type": kind, "status": "True", "reason": f"Why{kind}"} for kind in conditions]
    status = {"conditions": listed, **more.pop("status", {})}
    return {"metadata": {"name": "j", **more.pop("metadata", {})}, "status": status, **more}


def _pod(phase: str, *containers: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "j-x"},
        "status": {"phase": phase, "containerStatuses": list(containers), **status},
    }


DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
CASES = {
    "no pod yet": (_job(), [], JobState.WAITING, "no pod yet"),
    "suspended": (_job(spec={"suspend": True}), [], JobState.WAITING, "suspended"),
    "creating": (_job(), [_pod("Pending", WAITING)], JobState.WAITING, "ContainerCreating"),
    "no status": (_job(), [{"metadata": {"name": "p"}}], JobState.WAITING, "p is pending"),
    "running": (_job(), [_pod("Running", RUNNING)], JobState.RUNNING, ""),
    "failed, yet a pod runs": (
        _job("Failed", status={"failed": 1}),
        [_pod("Failed", ENDED), _pod("Running", RUNNING)],
        JobState.RUNNING,
        "",
    ),
    "deleted, the pod is ending": (
        _job(metadata=DELETED),
        [_pod("Running", RUNNING)],
        JobState.RUNNING,
        "",
    ),
    "deleted, a finalizer holds it": (_job(metadata=DELETED), [], JobState.NOT_FOUND, "deleted"),
    "its node is silent": (_job(), [_pod("Unknown")], JobState.UNKNOWN, "silent"),
    "failed": (_job("Failed"), [], JobState.FAILED, "WhyFailed"),
    "complete": (_job("Complete"), [], JobState.SUCCEEDED, "WhyComplete"),
    "the pod failed, the Job is not counted yet": (
        _job(),
        [_pod("Failed", ENDED)],
        JobState.FAILED,
        "OOMKilled, exit code 137",
    ),
    "evicted": (
        _job(),
        [_pod("Failed", reason="Evicted", message="The node was low on memory.")],
        JobState.FAILED,
        "Evicted: The node was low on memory.",
    ),
    "the pod succeeded": (_job(), [_pod("Succeeded")], JobState.SUCCEEDED, ""),
}


KILLED = {"reason": "OOMKilled"}  # airflow#73164: nothing else, and told as "because of None"


def _disrupted(reason: str, message: str = "") -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason}
    return _pod("Failed", conditions=[condition | ({"message": message} if message else {})])


LAST_WORDS = {
    "only a reason": (
        _pod("Failed", {"state": {"terminated": KILLED}}),
        "OOMKilled; out of memory",
    ),
    "in the last state": (
        _pod("Failed", {"state": {}, "lastState": {"terminated": KILLED | {"exitCode": 137}}}),
        "OOMKilled, exit code 137; out of memory: raise GENESIS_JOB_MEMORY_MIB",
    ),
    "of a container before": (
        _pod("Failed", initContainerStatuses=[{"state": {"terminated": KILLED}}]),
        "OOMKilled; out of memory",
    ),
    "killed, and therefore evicted": (
        _pod("Failed", {"state": {"terminated": KILLED}}, reason="Evicted"),
        "OOMKilled; out of memory",
    ),
    "preempted": (
        _disrupted("PreemptionByScheduler", "by a pod of higher priority"),
        "PreemptionByScheduler: by a pod of higher priority; a pod of higher priority took",
    ),
    "drained": (_disrupted("EvictionByEvictionAPI"), "EvictionByEvictionAPI; the pod was evicted"),
    "node lost": (_disrupted("DeletionByTaintManager"), "; its node was lost or tainted"),
    "node gone": (_pod("Failed", reason="NodeLost"), "NodeLost; its node was lost"),
    "by a signal alone": (
        _pod("Failed", {"state": {"terminated": {"signal": 9}}}),
        "the container ended",
    ),
}


@pytest.mark.parametrize(("pod", "words"), LAST_WORDS.values(), ids=LAST_WORDS)
@pytest.mark.parametrize("job", [_job(), _job("Failed")], ids=["not counted yet", "counted"])
def test_last_words_are_found_wherever_kubernetes_says_them(job, pod, words: str) -> None:
    status = job_status(job, [_pod("Failed"), pod])
    assert status.state is JobState.FAILED
    assert words in status.reason
    assert "None" not in status.reason


@pytest.mark.parametrize(("job", "pods", "state", "reason"), CASES.values(), ids=CASES)
def test_status(job: dict[str, Any], pods: list[Any], state: JobState, reason: str) -> None:
    status = job_status(job, pods)
    assert status.state is state
    assert reason in status.reason


def test_a_condition_that_is_false_does_not_count() -> None:
    job = _job()
    job["status"]["conditions"] = [{"type": "Failed", "status": "False"}]
    assert job_status(job, []).state is JobState.WAITING


def test_a_long_reason_is_one_short_line() -> None:
    state = {"state": {"waiting": {"reason": "ErrImagePull", "message": "a\n" * 1000}}}
    reason = job_status(_job(), [_pod("Pending", state)]).reason
    assert len(reason) == 300
    assert "\n" not in reason
