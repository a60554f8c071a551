"""Ray Jobs as an engine."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel, ValidationError

from genesis_fp16.executors.ray.check import check_cluster
from genesis_fp16.executors.ray.connection import Connection, RefusedError
from genesis_fp16.executors.ray.machines import KINDS, is_enough, machines_of, written
from genesis_fp16.executors.remote import (
    ENGINE_LOG,
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
)

REQUEST = "genesis_request"  # metadata of a job: what was asked for, to ask for it again
START_TIMEOUT = "JOB_SUPERVISOR_ACTOR_START_TIMEOUT"
_REMEDIES = (  # what Ray says of a job that it lost, to the remedy
    (
        re.compile("OutOfMemory|out of memory|memory monitor|OOM", re.I),
        "OOMKilled: raise GENESIS_JOB_MEMORY_MIB",
    ),
    (re.compile("preempt|drain", re.I), "its node was taken away; it goes on elsewhere"),
    (
        re.compile("node[^.]*(died|dead|lost|terminated|removed)", re.I),
        "its node was lost; it goes on elsewhere",
    ),
)
_Machines: TypeAlias = Callable[[], list[Mapping[str, float]]]
STATES = {
    "PENDING": JobState.WAITING,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.FAILED,
}


class RayEngine:
    """Jobs of a Ray cluster; the submission id of a job is its name.

    Ray has no limit on a job's time: `Resources.minutes` has no effect.

    Args:
        address: URL of the cluster's dashboard, for example ``http://head:8265``.
        token_file: File with the cluster's token, read at each call; None if it has none.
    """

    name = "ray"

    def __init__(self, address: str, token_file: Path | None = None) -> None:
        self._address, self._token_file = address, token_file
        self._killed: set[str] = set()  # while they waited
        self._dropped: dict[str, dict[str, Any]] = {}  # requests to submit again, by name

    def submit(self, job: JobRequest) -> str:
        """Submit *job* unless Ray knows its name; return its submission id.

        Raises:
            EngineError: Ray refused, or did not answer.
        """
        with self._connect() as ray:
            if _job_of(ray, job.name) is None:
                _post(ray, _request_of(job))
        return job.name

    def statuses(self, jobs: Sequence[JobRef]) -> Mapping[str, JobStatus]:
        """Status of each of *jobs* by name, with a request for each.

        Not with one for all: Ray's list contains every job since the start of the cluster. A job
        that Ray gave up because no machine was free for 15 minutes is submitted again.
        """
        statuses: dict[str, JobStatus] = {}
        silent = JobStatus(state=JobState.UNKNOWN)
        try:
            with self._connect() as ray:
                machines = cache(lambda: machines_of(ray))  # asked for once, if a job waits
                for job in jobs:
                    try:
                        statuses[job.name] = self._status_of(ray, job.name, machines)
                    except RefusedError as error:
                        statuses[job.name] = JobStatus(state=JobState.UNKNOWN, reason=str(error))
        except EngineError as error:
            silent = JobStatus(state=JobState.UNKNOWN, reason=str(error))
        return {job.name: statuses.get(job.name, silent) for job in jobs}

    def _status_of(self, ray: Connection, name: str, machines: _Machines) -> JobStatus:
        job = _job_of(ray, name)
        if job is not None and job.error_type == START_TIMEOUT and name not in self._killed:
            self._dropped[name] = job.request
            ray.ask("DELETE", f"/api/jobs/{name}")
            job = None
        if job is None and name in self._dropped:
            _post(ray, self._dropped[name])
            del self._dropped[name]
            job = _job_of(ray, name)
        if job is None:
            return JobStatus(state=JobState.NOT_FOUND)
        if job.status == "PENDING":
            if name in self._killed:
                reason = "killed while it waited: Ray ends it as soon as a machine is free"
                return JobStatus(state=JobState.FAILED, reason=reason)
            return JobStatus(state=JobState.WAITING, reason=_waits_for(machines, job.request))
        if (state := STATES.get(job.status)) is None:
            reason = f"Ray calls its state {job.status}, which is unknown here"
            return JobStatus(state=JobState.UNKNOWN, reason=reason)
        return JobStatus(state=state, reason=job.failure if state is JobState.FAILED else "")

    def stop(self, job: JobRef) -> None:
        """Let Ray send SIGTERM to the launcher and its descendants, SIGKILL `stop_seconds` later.

        Raises:
            EngineError: Ray refused, or did not answer.
        """
        with self._connect() as ray:
            ray.ask("POST", f"/api/jobs/{job.name}/stop")

    def kill(self, job: JobRef) -> None:
        """As `stop`: Ray has no other way to end a job, and none at all for one that waits.

        The latter counts as failed from now on; Ray ends it at once when a machine is free.

        Raises:
            EngineError: Ray refused, or did not answer.
        """
        self._dropped.pop(job.name, None)
        with self._connect() as ray:
            known = _job_of(ray, job.name)
            if known is None:
                return
            if known.status == "PENDING" or known.error_type == START_TIMEOUT:
                self._killed.add(job.name)
            ray.ask("POST", f"/api/jobs/{job.name}/stop")

    def check(self) -> list[Finding]:
        """Whether the cluster answers, its version, token, clock and machines."""
        return check_cluster(self._address, self._token_file)

    def close(self) -> None:
        """Nothing to release: a connection lasts for one call."""

    def _connect(self) -> Connection:
        return Connection(self._address, self._token_file)


class _Job(BaseModel):
    """What Ray says about a job, as far as it matters here."""

    submission_id: str
    status: str
    message: str | None = None
    error_type: str | None = None
    metadata: dict[str, str] | None = None

    @property
    def failure(self) -> str:
        """Why it failed, without the log, the traceback and the indented details that follow."""
        text = re.split(", last available logs| Full traceback:", self.message or "")[0]
        words = " ".join(line for line in text.splitlines() if not line.startswith("\t"))[:300]
        told = f"{self.error_type or ''} {self.message or ''}"
        remedy = next((each for what, each in _REMEDIES if what.search(told)), "")
        return f"{words}; {remedy}" if remedy else words

    @property
    def request(self) -> dict[str, Any]:
        """Body of the request that submitted the job.

        Raises:
            EngineError: The job is not one of ours.
        """
        try:
            request: dict[str, Any] = json.loads((self.metadata or {})[REQUEST])
        except (ValueError, LookupError) as error:
            raise RefusedError(
                f"Ray has a job {self.submission_id} that no daemon of ours submitted; delete it "
                "with `ray job delete`"
            ) from error
        return request | {"metadata": self.metadata}


def _job_of(ray: Connection, name: str) -> _Job | None:
    answer = ray.ask("GET", f"/api/jobs/{name}")
    if answer.status == 404:
        return None
    try:
        return _Job.model_validate_json(answer.text)
    except ValidationError as error:
        raise ray.unreadable(f"job {name}") from error


def _request_of(job: JobRequest) -> dict[str, Any]:
    log = "" if job.folder is None else f" >>{shlex.quote(str(job.folder / ENGINE_LOG))} 2>&1"
    memory = job.resources.memory_mib
    stop_seconds = str(math.ceil(job.stop_seconds))
    request: dict[str, Any] = {
        "submission_id": job.name,
        "entrypoint": f"exec {shlex.join(job.command)}{log}",
        "entrypoint_num_cpus": job.resources.cpus,
        "entrypoint_num_gpus": job.resources.gpus,
        "entrypoint_memory": None if memory is None else memory * 2**20,
        "runtime_env": {"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": stop_seconds}},
    }
    return request | {"metadata": {**job.labels, REQUEST: json.dumps(request)}}


def _post(ray: Connection, request: Mapping[str, Any]) -> None:
    try:
        ray.ask("POST", "/api/jobs/", request)
    except RefusedError as error:
        if "already exists" not in error.said:  # an earlier request for the same job arrived
            raise


def _waits_for(machines: _Machines, request: Mapping[str, Any]) -> str:
    amounts = (request[f"entrypoint_{kind}"] or 0 for kind in ("num_cpus", "num_gpus", "memory"))
    wanted = dict(zip(KINDS, amounts, strict=True))
    fits = any(is_enough(machine, wanted) for machine in machines())
    state = "none is free" if fits else "the cluster has none"
    return f"waits for a machine of Ray with {written(wanted)}: {state}"
