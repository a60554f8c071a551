"""Workers as jobs of an engine. Files on shared storage decide how an attempt ended.

What the dispatcher calls touches files alone; `EngineThread` talks to the engine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.remote_attempt import KILL_LINE, JobOrder
from genesis_fp16.domain.run_spec import LONGEST_SPEC, SPEC_FILE, RunSpec
from genesis_fp16.executors.base import ExitStatus, Handle
from genesis_fp16.executors.bucket import Mirrors
from genesis_fp16.executors.job_files import (
    is_claimed,
    read_order,
    write_fence,
    write_order,
)
from genesis_fp16.executors.local import LocalExecutor
from genesis_fp16.executors.remote.ending import Endings, revoke_run
from genesis_fp16.executors.remote.engine import (
    Engine,
    JobRequest,
    JobState,
    JobStatus,
    Resources,
)
from genesis_fp16.executors.remote.engine_thread import CLOSE_SECONDS, EngineThread
from genesis_fp16.executors.remote.job import GONE, Job
from genesis_fp16.system.permissions import write_private
from infrastructure.events import Command
from infrastructure.events.command import Stop
from infrastructure.files import read_model

LAUNCHER = ("-P", "-m", "genesis_fp16.worker.remote")
ASK_SECONDS = 2.0  # between two questions about all jobs
LOOK_SECONDS = 0.2  # between two looks at the files of one job
GRACE_SECONDS = 15.0  # for the result of a job that the engine says is gone
KILL_SECONDS = 3.0  # in which a launcher must kill its worker before the engine is asked to
_LONGEST_NAME = 63

log = structlog.get_logger()


@dataclass(frozen=True, kw_only=True, slots=True)
class JobOptions:
    """What the settings say about the jobs of an agent.

    Attributes:
        python: Python interpreter on the other machines, with the same packages as here.
        resources: What a job asks for.
        stop_seconds, run_seconds: As in `JobOrder`.
    """

    python: str
    resources: Resources = field(default_factory=Resources)
    stop_seconds: float = 8.0
    run_seconds: float = 14400.0


class RemoteExecutor:
    """Starts a job of *engine* for each attempt, and takes over those of an earlier daemon.

    Args:
        options: Returns the options of an agent's jobs.
        worker: Command line of the worker, see `JobOrder`.
        mirrors: What stands in for a folder that other machines would share; None if they share it.
        grace_seconds: Time for the result of a job that the engine says is gone.
        ask_seconds: Time between two questions to the engine about all jobs.

    Attributes:
        engine: As given.
    """

    def __init__(
        self,
        engine: Engine,
        options: Callable[[str], JobOptions],
        *,
        worker: Sequence[str] = (),
        mirrors: Mirrors | None = None,
        grace_seconds: float = GRACE_SECONDS,
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        self.engine = engine
        self._options, self._worker, self._mirrors = options, tuple(worker), mirrors
        self._jobs: dict[str, Job] = {}
        self._processes = LocalExecutor()  # those that a daemon without an engine has left
        self._thread = EngineThread(engine, self._jobs, ask_seconds)
        self._endings = Endings(engine.name, grace_seconds, end=self._thread.kill)

    def submit(self, spec: RunSpec) -> Handle:
        """Order a job for the attempt; a second call for the same attempt changes nothing.

        Raises:
            OSError: Its folder cannot be written.
        """
        name = job_name(spec.agent, spec.run_id, spec.attempt, spec.incarnation)
        folder = spec.attempt_folder
        if name not in self._jobs:
            options = self._options(spec.agent)
            write_private(folder / SPEC_FILE, spec.model_dump_json(indent=2))
            write_fence(spec.run_folder, spec.incarnation)
            order = JobOrder(
                job=name,
                engine=self.engine.name,
                incarnation=spec.incarnation,
                worker=self._worker,
                stop_seconds=options.stop_seconds,
                run_seconds=options.run_seconds,
                ordered_at=time.time(),
            )
            write_order(folder, order)
            self._follow(Job(name, folder, spec.incarnation, self._request(name, spec)))
        return Handle(job=name, folder=folder)

    def _request(self, name: str, spec: RunSpec) -> JobRequest:
        options, processes = self._options(spec.agent), spec.processes_per_run
        command: tuple[str, ...] = (*LAUNCHER, str(spec.attempt_folder / SPEC_FILE))
        if self._mirrors is not None:
            command = (*self._mirrors.launcher, name)
        return JobRequest(
            name=name,
            command=(options.python, *command),
            folder=None if self._mirrors is not None else spec.attempt_folder,
            resources=replace(options.resources, cpus=max(options.resources.cpus, processes)),
            processes=processes,
            stop_seconds=options.stop_seconds,
            labels={
                "agent": spec.agent,
                "run": spec.run_id,
                "attempt": str(spec.attempt),
                "incarnation": spec.incarnation,
            },
        )

    def _follow(self, job: Job) -> None:
        self._jobs[job.name] = job
        self._thread.start()
        if self._mirrors is not None:
            job.mirror = self._mirrors.of(
                job.name,
                job.folder,
                job.incarnation,
                on_ready=lambda: self._thread.submit(job),
            )
        self._thread.submit(job)

    def find(self, folder: Path) -> Handle | None:
        """Handle of the job that an earlier daemon ordered for the attempt in *folder*, if any."""
        order = read_order(folder)
        return None if order is None else Handle(job=order.job, folder=folder)

    def end_foreign(self, agent: str, attempt: Attempt, folder: Path) -> Handle | None:
        """Have the engine end the job, which it knows by its name.

        Its daemon may have died before it recorded the job, or before it asked for one.
        """
        number, incarnation = attempt.number, attempt.incarnation
        name = attempt.job or job_name(agent, attempt.run_id, number, incarnation)
        job = Job(name, folder, incarnation, request=None, started=True, foreign=True)
        log.info("foreign_job_cancelled", agent=agent, engine=self.engine.name, job=name)
        self._jobs[name] = job
        self._thread.start()  # it stops the job once it knows whether that waits
        return Handle(job=name, folder=folder)

    def recover(self, handle: Handle) -> bool:
        """Take over the attempt of an earlier daemon; False if that is not possible.

        `poll` then tells how it has ended, if it has. What was ordered and perhaps never asked
        for is asked for again; the engine knows it by its name.
        """
        if not handle.job or handle.folder is None:
            return self._processes.recover(handle)
        order = read_order(handle.folder)
        if order is None or order.job != handle.job:
            return False
        if order.engine != self.engine.name:
            log.warning("job_of_other_engine", job=handle.job, engine=order.engine)
            revoke_run(handle.job, handle.folder)  # if it fails: the next attempt's fence does it
            return False
        request = None
        if not is_claimed(handle.folder):
            try:
                spec = read_model(handle.folder / SPEC_FILE, RunSpec, limit=LONGEST_SPEC)
            except (OSError, ValueError) as error:
                log.warning("spec_unreadable", job=handle.job, error=str(error))
                revoke_run(handle.job, handle.folder)
                return False
            request = self._request(handle.job, spec)
        self._follow(Job(handle.job, handle.folder, order.incarnation, request))
        return True

    def poll(self, handle: Handle) -> ExitStatus | None:
        """How the worker ended, or None while nobody knows that it has."""
        if not handle.job:
            return self._processes.poll(handle)
        job = self._jobs.get(handle.job)
        if job is None:
            return ExitStatus()
        now = time.monotonic()
        if now < job.look_at:
            return None
        job.look_at = now + LOOK_SECONDS
        job.flush()
        status = self._endings.of(job, now)
        if status is not None:
            job.over = True
            if job.mirror is not None:
                job.mirror.finish()
            del self._jobs[handle.job]
        return status

    def waiting(self, handle: Handle) -> str:
        """What the job waits for before it starts, or what its successor waits for."""
        job = self._jobs.get(handle.job)
        if job is not None and job.foreign:
            cause = job.status.reason if job.status.state is JobState.UNKNOWN else ""
            text = f"until {self.engine.name} says that {job.name} of another home is gone"
            return f"{text}: {cause}" if cause else text
        if job is None or job.started or job.refused or job.killed:
            return ""
        if job.mirror is not None and job.mirror.waiting:
            return job.mirror.waiting
        return job.trouble or self._says(job.status)

    def _says(self, status: JobStatus) -> str:
        """What a job of that *status* waits for, as the engine says it; empty if it does not."""
        name, reason = self.engine.name, f": {status.reason}" if status.reason else ""
        texts = {
            JobState.WAITING: f"in the queue of {name}{reason}",
            JobState.UNKNOWN: f"{name} has not answered yet{reason}",
            JobState.NOT_FOUND: f"{name} does not know its job; the attempt ends if that stays so",
        }
        return texts.get(status.state, "")

    def unreachable(self, handle: Handle) -> str:
        """Why the bucket cannot be used at present; empty if it can, or none is needed."""
        job = self._jobs.get(handle.job)
        return "" if job is None or job.mirror is None else job.mirror.trouble

    def send(self, handle: Handle, command: Command) -> None:
        """Append *command* to the file that the launcher reads; `poll` writes what is left."""
        job = self._jobs.get(handle.job)
        if job is None:
            if not handle.job:
                self._processes.send(handle, command)
            return
        job.unsent += command.model_dump_json().encode() + b"\n"
        job.flush()
        job.started = job.started or is_claimed(job.folder)
        if isinstance(command, Stop) and not job.started:
            self.kill(handle)  # it has not started: the engine need not start it

    def extend_lease(self, until: float) -> None:
        """Ask for no job later than that: the next leader may have looked for it by then.

        What runs by then goes on: the next leader takes it over, or ends it.
        """
        self._thread.submit_until = until

    def kill(self, handle: Handle) -> bool:
        """Have the launcher kill the worker and its descendants, and then the engine the job.

        An engine does not find every descendant. A job that has not started is the engine's alone.
        An engine that says that a job has ended may be mistaken, so it is asked to end it even so.

        Returns:
            False if the worker has ended, or the engine says that its job has.
        """
        job = self._jobs.get(handle.job)
        if job is None:
            return not handle.job and self._processes.kill(handle)
        if not job.killed and not job.foreign:
            job.unsent += KILL_LINE + b"\n"
            job.flush()
            if job.started and not job.unsent:
                job.kill_at = time.monotonic() + KILL_SECONDS
        if not job.killed or job.foreign:
            job.killed = True
            self._thread.kill(job)
        return job.status.state not in GONE

    def trouble_seconds(self) -> float:
        """Seconds for which engine or bucket have refused a job or not answered; 0 if neither has.

        A job that waits in its queue does not count.
        """
        return self._thread.trouble_seconds()

    def keep_spare(self, wanted: bool) -> None:
        """Do nothing: other machines keep no process ready."""

    def close(self) -> None:
        """Wait a little for the last answers of the engine and leave it; jobs go on."""
        self._thread.close()
        if self._mirrors is not None:
            self._mirrors.close(CLOSE_SECONDS)


def job_name(agent: str, run_id: str, number: int, incarnation: str) -> str:
    """Name of an attempt's job: the same for the same attempt, and of no other."""
    end = f"-{run_id}-{number}-{incarnation[:8]}"
    name = f"genesis-{agent}"[: _LONGEST_NAME - len(end)] + end
    return re.sub(r"[^a-z0-9-]", "-", name.lower())[-_LONGEST_NAME:]
