"""An engine of this machine's processes; a test says how it misbehaves."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from genesis_fp16.executors.remote import (
    ENGINE_LOG,
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
    RemoteExecutor,
)
from tests.genesis_fp16.executors.contract import remote_executor
from tests.preloaded import LAUNCHER, ForkedPopen


class _ForkedLauncher(ForkedPopen):
    """Forks the launcher of an attempt, which starts its worker as ever."""

    modules = (*ForkedPopen.modules, LAUNCHER)


class ProcessCluster:
    """Jobs as processes.

    Attributes:
        down: Whether it answers nothing.
        is_full: Whether jobs wait.
        full_reason: What it says of them.
        forgotten: Names of jobs that it denies.
        refusal: Error with which it refuses a job for good; empty for none.
    """

    def __init__(self) -> None:
        self.jobs: dict[str, subprocess.Popen[bytes]] = {}
        self.queue: dict[str, JobRequest] = {}
        self.deleted: set[str] = set()
        self.forgotten: set[str] = set()
        self.down = self.is_full = False
        self.full_reason, self.refusal = "no room", ""

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        return remote_executor(self.engine(), worker)

    def engine(self) -> "ProcessEngine":
        return ProcessEngine(self)

    def delete(self, job: str) -> None:
        if self.queue.pop(job, None) is not None:
            self.deleted.add(job)
        if (process := self.jobs.get(job)) is not None and process.poll() is None:
            # All stand still first: a launcher would record how its worker ended, and a worker
            # whose launcher has gone that it stopped.
            launcher = psutil.Process(process.pid)
            launcher.suspend()
            members = [launcher, *launcher.children(recursive=True)]
            for member in members[1:]:
                member.suspend()
            for member in members:
                member.kill()
            process.wait(timeout=300)

    @contextmanager
    def unreachable(self) -> Iterator[None]:
        self.down = True
        try:
            yield
        finally:
            self.down = False

    @contextmanager
    def full(self) -> Iterator[None]:
        self.is_full = True
        try:
            yield
        finally:
            self.is_full = False

    def close(self) -> None:
        for process in self.jobs.values():
            process.wait(timeout=300)

    def start(self, job: JobRequest) -> None:
        log_path = Path(os.devnull) if job.folder is None else job.folder / ENGINE_LOG
        with log_path.open("ab") as log:
            self.jobs[job.name] = _ForkedLauncher(
                job.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


class ProcessEngine:
    name = "process"

    def __init__(self, cluster: ProcessCluster) -> None:
        self._cluster = cluster

    def _check_up(self) -> None:
        if self._cluster.down:
            raise EngineError("the engine is down; start it", temporary=True)

    def submit(self, job: JobRequest) -> str:
        self._check_up()
        cluster = self._cluster
        if cluster.refusal:
            raise EngineError(cluster.refusal, temporary=False)
        if job.name not in {**cluster.jobs, **cluster.queue}:
            cluster.queue[job.name] = job
            if not cluster.is_full:
                cluster.start(cluster.queue.pop(job.name))
        return job.name

    def statuses(self, jobs: Sequence[JobRef]) -> Mapping[str, JobStatus]:
        if self._cluster.down:
            unknown = JobStatus(state=JobState.UNKNOWN, reason="the engine is down")
            return {job.name: unknown for job in jobs}
        return {job.name: self._status(job.name) for job in jobs}

    def _status(self, name: str) -> JobStatus:
        cluster = self._cluster
        if name in cluster.forgotten:
            return JobStatus(state=JobState.NOT_FOUND)
        if name in cluster.queue:
            if cluster.is_full:
                return JobStatus(state=JobState.WAITING, reason=cluster.full_reason)
            cluster.start(cluster.queue.pop(name))
        if name in cluster.jobs:
            code = cluster.jobs[name].poll()
            if code is None:
                return JobStatus(state=JobState.RUNNING)
            return JobStatus(state=JobState.FAILED if code else JobState.SUCCEEDED)
        return JobStatus(state=JobState.NOT_FOUND)

    def stop(self, job: JobRef) -> None:
        self._check_up()
        if job.name in self._cluster.jobs:
            self._cluster.jobs[job.name].send_signal(signal.SIGTERM)

    def kill(self, job: JobRef) -> None:
        self._check_up()
        self._cluster.delete(job.name)

    def check(self) -> list[Finding]:
        return [Finding(ok=not self._cluster.down, what="processes of this machine")]

    def close(self) -> None:
        pass
