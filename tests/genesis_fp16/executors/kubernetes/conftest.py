"""An engine on a real socket, and a job whose command is a small shell program."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.remote import JobRef, JobRequest, JobState, JobStatus, Resources
from tests.genesis_fp16.executors.kubernetes_cluster import (
    KubernetesCluster,
    kubernetes_cluster,
)
from tests.patience import wait_until

__all__ = ["kubernetes_cluster"]


@pytest.fixture
def cluster(kubernetes_cluster: KubernetesCluster) -> Iterator[KubernetesCluster]:
    kubernetes_cluster.requests()
    yield kubernetes_cluster
    kubernetes_cluster.behave()


@pytest.fixture
def engine(cluster: KubernetesCluster, tmp_path: Path) -> Iterator[KubernetesEngine]:
    engine = cluster.engine(tmp_path)
    yield engine
    cluster.behave()
    engine.close()


@pytest.fixture
def request_of(tmp_path: Path) -> Callable[..., JobRequest]:
    """A job that runs a shell program in the attempt's folder, under a name of its own."""

    def make(script: str, **resources: int) -> JobRequest:
        return JobRequest(
            name=f"genesis-pendulum-r1-1-{uuid.uuid4().hex[:8]}",
            command=("/bin/sh", "-c", f"cd {tmp_path}; {script}"),
            folder=tmp_path,
            resources=Resources(**resources),
            stop_seconds=20.0,
            labels={"agent": "pendulum", "run": "r1", "attempt": "1"},
        )

    return make


@pytest.fixture
def wait_for(engine: KubernetesEngine) -> Callable[..., JobStatus]:
    """Ask until the job has one of some states."""

    def wait(job: JobRef, *states: JobState) -> JobStatus:
        seen: list[JobStatus] = []

        def reached() -> bool:
            seen.append(engine.statuses([job])[job.name])
            return seen[-1].state in states

        wait_until(reached, f"{job.name} to be {' or '.join(states)}")
        return seen[-1]

    return wait
