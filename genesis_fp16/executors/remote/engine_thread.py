"""The thread that talks to an engine, which may take seconds to answer or not answer at all."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import Empty, SimpleQueue

import structlog

from genesis_fp16.executors.remote.engine import Engine, EngineError, JobState, JobStatus
from genesis_fp16.executors.remote.job import GONE, Job
from infrastructure.events.plain_text import plain

LONGEST_RETRY_SECONDS = 60.0  # between two tries to submit a job
CLOSE_SECONDS = 5.0  # for the engine to answer what was asked last
_NOT_STARTED = (JobState.WAITING, JobState.UNKNOWN, JobState.NOT_FOUND)

log = structlog.get_logger()


class EngineThread:
    """Submits, asks about and ends *jobs*; no method but `close` waits for the engine.

    Args:
        jobs: Those that are followed, by name; the caller changes it.
        ask_seconds: Time between two questions about all jobs.

    Attributes:
        submit_until: Monotonic seconds from which no job is asked for any more.
    """

    def __init__(self, engine: Engine, jobs: Mapping[str, Job], ask_seconds: float) -> None:
        self._engine, self._jobs, self._ask_interval = engine, jobs, ask_seconds
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._troubled_at: float | None = None  # monotonic seconds
        self.submit_until = math.inf

    def start(self) -> None:
        """Start it, unless it runs."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._talk, name="engine", daemon=True)
            self._thread.start()

    def submit(self, job: Job) -> None:
        """Have the engine take *job*, if it may have it and does not have it yet."""
        self._requests.put(lambda: self._submit(job))

    def kill(self, job: Job) -> None:
        """Have the engine end *job*, once its launcher has had its time."""
        self._requests.put(lambda: self._kill(job))

    def trouble_seconds(self) -> float:
        """Seconds for which engine or bucket have refused or not answered; 0 if neither has."""
        began = self._troubled_at
        return 0.0 if began is None else time.monotonic() - began

    def close(self) -> None:
        """Wait a little for the last answers of the engine and leave it."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSE_SECONDS)
            self._thread = None

    # Below: the thread

    def _talk(self) -> None:
        ask_at = 0.0
        while True:
            with suppress(Empty):
                request = self._requests.get(timeout=max(0.0, ask_at - time.monotonic()))
                if request is None:
                    break
                self._guarded(request)
            if time.monotonic() >= ask_at:
                self._guarded(self._ask)
                ask_at = time.monotonic() + self._ask_interval
        self._engine.close()

    def _guarded(self, request: Callable[[], None]) -> None:
        """Make *request*; an error in it must end neither the thread nor another job."""
        try:
            request()
        except Exception:  # of any kind: clients of engines raise what they like
            log.exception("engine_failed", engine=self._engine.name)

    def _ask(self) -> None:
        """Submit again what could not be submitted, and ask for the states of the others."""
        jobs = [job for job in list(self._jobs.values()) if not job.over]
        now = time.monotonic()
        for job in jobs:
            if now >= job.submit_at:
                self._submit(job)
        asked = [job for job in jobs if job.request is None]
        statuses = self._engine.statuses([job.ref for job in asked]) if asked else {}
        for job in asked:
            job.status = statuses.get(job.name, JobStatus(state=JobState.UNKNOWN))
            job.started = job.started or job.status.state not in _NOT_STARTED
            if job.status.leave and not job.leaves:
                job.leaves = True
                log.info("job_leaves", job=job.name, reason=job.status.leave)
                self._stop(job)
            if job.foreign and not job.leaves:
                self._end_foreign(job)
            if job.killed and job.status.state not in GONE:
                self._kill(job)
        self._note_trouble([job for job in jobs if not job.over])

    def _end_foreign(self, job: Job) -> None:
        """Have a job end that the engine alone knows; one that waits has no process to signal."""
        if job.status.state is JobState.RUNNING:
            job.leaves = True
            self._stop(job)
        elif job.status.state is JobState.WAITING:
            job.leaves = job.killed = True

    def _note_trouble(self, jobs: list[Job]) -> None:
        """Take note of whether engine or bucket refuse a job or do not answer; log a change."""
        unknown = [job.status for job in jobs if job.status.state is JobState.UNKNOWN]
        reasons = [job.trouble for job in jobs] + [status.reason for status in unknown]
        reasons += [job.mirror.trouble for job in jobs if job.mirror is not None]
        reason = next(filter(None, reasons), "")
        if bool(reason) == (self._troubled_at is not None):
            return
        if reason:
            self._troubled_at = time.monotonic()
            log.warning("engine_interrupted", engine=self._engine.name, reason=plain(reason))
        else:
            self._troubled_at = None
            log.info("engine_resumed", engine=self._engine.name)

    def _submit(self, job: Job) -> None:
        if job.request is None or job.over or job.refused:
            return
        if time.monotonic() >= self.submit_until:
            return
        if job.mirror is not None and not (job.mirror.ready or job.killed):
            return
        try:
            if not job.killed:
                job.id = self._engine.submit(job.request)
                log.info("job_submitted", engine=self._engine.name, job=job.name, id=job.id)
            job.request, job.trouble = None, ""
        except EngineError as error:
            if not error.temporary:
                job.refused = str(error)
                return
            job.tries += 1
            wait = min(2.0**job.tries, LONGEST_RETRY_SECONDS)
            job.submit_at = time.monotonic() + wait
            if job.trouble != str(error):
                log.warning("job_not_submitted", job=job.name, error=str(error))
            job.trouble = str(error)
        except Exception as error:
            job.refused = f"{self._engine.name} failed to take the job {job.name}: {error!r}"
            raise

    def _stop(self, job: Job) -> None:
        try:
            self._engine.stop(job.ref)
        except EngineError as error:
            log.warning("job_not_stopped", job=job.name, error=str(error))

    def _kill(self, job: Job) -> None:
        if time.monotonic() < job.kill_at:
            return
        try:
            self._engine.kill(job.ref)
        except EngineError as error:
            log.warning("job_not_killed", job=job.name, error=str(error))
