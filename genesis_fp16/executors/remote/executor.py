"""Workers as jobs of an engine. Files on shared storage decide how an attempt ended.

The methods that the dispatcher calls touch files alone. One thread talks to the engine, which may
take seconds to answer or not answer at all.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog

from genesis_fp16.domain.remote_attempt import KILL_LINE, JobOrder
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.executors.base import ExitStatus, Handle
from genesis_fp16.executors.job_files import (
    append_commands,
    is_claimed,
    last_heartbeat,
    read_order,
    read_result,
    revoke,
    write_fence,
    write_order,
)
from genesis_fp16.executors.local import LocalExecutor
from genesis_fp16.executors.object_store import AttemptMirror, Mirrors
from genesis_fp16.executors.remote.engine import (
    ENGINE_LOG,
    Engine,
    EngineError,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
    Resources,
)
from genesis_fp16.system.permissions import write_private
from infrastructure.events import Command
from infrastructure.events.command import Stop
from infrastructure.events.plain_text import plain
from infrastructure.files import open_regular

LAUNCHER = ("-P", "-m", "genesis_fp16.worker.remote")
ASK_SECONDS = 2.0  # between two questions about all jobs
LOOK_SECONDS = 0.2  # between two looks at the files of one job
GRACE_SECONDS = 15.0  # for the result of a job that the engine says is gone
KILLED_GRACE_SHARE = 0.2  # of that time, if the job was killed
KILL_SECONDS = 3.0  # in which a launcher must kill its worker before the engine is asked to
LONGEST_RETRY_SECONDS = 60.0  # between two tries to submit a job
CLOSE_SECONDS = 5.0  # for the engine to answer what was asked last
_NOT_STARTED = (JobState.WAITING, JobState.UNKNOWN, JobState.NOT_FOUND)
_GONE = (JobState.NOT_FOUND, JobState.FAILED, JobState.SUCCEEDED)
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
        hosts_fleets, outlives_daemon: See `Executor`.
    """

    hosts_fleets, outlives_daemon = False, True

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
        self._grace, self._ask_interval = grace_seconds, ask_seconds
        self._jobs: dict[str, _Job] = {}
        self._processes = LocalExecutor()  # those that a daemon without an engine has left
        self._requests: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._troubled_at: float | None = None  # monotonic seconds

    def submit(self, spec: RunSpec) -> Handle:
        """Order a job for the attempt; a second call for the same attempt changes nothing.

        Raises:
            OSError: Its folder cannot be written.
        """
        name, folder = job_name(spec), spec.attempt_folder
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
            self._follow(_Job(name, folder, spec.incarnation, self._request(name, spec)))
        return Handle(job=name, folder=folder)

    def submit_fleet(self, specs: Sequence[RunSpec]) -> list[Handle]:
        """Refuse: a job hosts one attempt.

        Raises:
            OSError: Always; see `hosts_fleets`.
        """
        raise OSError(f"{self.engine.name} hosts no fleets: {len(specs)} attempts need a job each")

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

    def _follow(self, job: _Job) -> None:
        self._jobs[job.name] = job
        if self._mirrors is not None:
            job.mirror = self._mirrors.of(
                job.name,
                job.folder,
                job.incarnation,
                on_ready=lambda: self._requests.put(lambda: self._submit(job)),
            )
        if self._thread is None:
            self._thread = threading.Thread(target=self._talk, name="engine", daemon=True)
            self._thread.start()
        self._requests.put(lambda: self._submit(job))

    def find(self, folder: Path) -> Handle | None:
        """Handle of the job that an earlier daemon ordered for the attempt in *folder*, if any."""
        order = read_order(folder)
        return None if order is None else Handle(job=order.job, folder=folder)

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
            _revoke(handle.job, handle.folder)  # if it fails: the next attempt's fence does it
            return False
        request = None
        if not is_claimed(handle.folder):
            try:
                with open_regular(handle.folder / SPEC_FILE) as file:
                    spec = RunSpec.model_validate_json(file.read())
            except (OSError, ValueError) as error:
                log.warning("spec_unreadable", job=handle.job, error=str(error))
                _revoke(handle.job, handle.folder)
                return False
            request = self._request(handle.job, spec)
        self._follow(_Job(handle.job, handle.folder, order.incarnation, request))
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
        status = self._ending(job, now)
        if status is not None:
            job.over = True
            if job.mirror is not None:
                job.mirror.finish()
            del self._jobs[handle.job]
        return status

    def _ending(self, job: _Job, now: float) -> ExitStatus | None:
        result = read_result(job.folder, job.incarnation)
        if result is not None:
            return ExitStatus(exit_code=result.exit_code, signal=result.signal, error=result.error)
        if job.refused:  # the engine may have taken it all the same
            refused = ExitStatus(exit_code=os.EX_CONFIG, error=job.refused)
            return refused if self._take_away(job) else None
        job.started = job.started or is_claimed(job.folder)
        if job.killed and not job.started:  # no answer of the engine is worth the wait
            return ExitStatus() if self._take_away(job) else None
        if job.status.state not in _GONE or (job.mirror and job.mirror.behind and not job.killed):
            job.gone_at = math.inf
            return None
        beat = last_heartbeat(job.folder)
        if job.gone_at == math.inf or beat != job.heartbeat:  # an engine may be mistaken
            job.gone_at, job.heartbeat = now, beat
        grace = self._grace * (KILLED_GRACE_SHARE if job.killed else 1.0)
        give_up = job.gone_at + grace
        unseen = job.mirror is not None and not job.killed and job.mirror.looked_at < give_up
        # A launcher that comes back all the same must not go on.
        if now < give_up or unseen or not self._take_away(job):
            return None
        said = f"{self.engine.name} says {job.status.state}"
        said += f" ({job.status.reason})" if job.status.reason else ""
        return ExitStatus(
            error=f"the job {job.name} is gone without a result: {said}; it was deleted or killed, "
            f"or its machine failed; see {job.folder / ENGINE_LOG}"
        )

    def _take_away(self, job: _Job) -> bool:
        """Take the run from the job and have the engine end it; False while storage fails."""
        if not _revoke(job.name, job.folder):
            job.look_at = time.monotonic() + ASK_SECONDS  # it stalls: try again, but not so often
            return False
        job.kill_at = 0.0
        self._requests.put(lambda: self._kill(job))
        return True

    def waiting(self, handle: Handle) -> str:
        """What the job waits for before it starts; empty once it has started."""
        job = self._jobs.get(handle.job)
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
        """Why the object store cannot be used at present; empty if it can, or none is needed."""
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

    def give_leave(self, until: float) -> None:
        """Do nothing: the fence of a run ends an earlier attempt."""
        del until

    def kill(self, handle: Handle) -> None:
        """Have the launcher kill the worker and its descendants, and then the engine the job.

        An engine does not find every descendant. A job that has not started is the engine's alone.
        """
        job = self._jobs.get(handle.job)
        if job is not None and not job.killed:
            job.killed = True
            job.unsent += KILL_LINE + b"\n"
            job.flush()
            if job.started and not job.unsent:
                job.kill_at = time.monotonic() + KILL_SECONDS
            self._requests.put(lambda: self._kill(job))
        elif job is None and not handle.job:
            self._processes.kill(handle)

    def trouble_seconds(self) -> float:
        """Seconds for which engine or store have refused a job or not answered; 0 if neither has.

        A job that waits in its queue does not count.
        """
        began = self._troubled_at
        return 0.0 if began is None else time.monotonic() - began

    def keep_spare(self, wanted: bool) -> None:
        """Do nothing: other machines keep no process ready."""

    def close(self) -> None:
        """Wait a little for the last answers of the engine and leave it; jobs go on."""
        if self._thread is not None:
            self._requests.put(None)
            self._thread.join(CLOSE_SECONDS)
            self._thread = None
        if self._mirrors is not None:
            self._mirrors.close(CLOSE_SECONDS)

    # Below: the thread that talks to the engine

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
        self.engine.close()

    def _guarded(self, request: Callable[[], None]) -> None:
        """Make *request*; an error in it must end neither the thread nor another job."""
        try:
            request()
        except Exception:  # of any kind: clients of engines raise what they like
            log.exception("engine_failed", engine=self.engine.name)

    def _ask(self) -> None:
        """Submit again what could not be submitted, and ask for the states of the others."""
        jobs = [job for job in list(self._jobs.values()) if not job.over]
        now = time.monotonic()
        for job in jobs:
            if now >= job.submit_at:
                self._submit(job)
        asked = [job for job in jobs if job.request is None]
        statuses = self.engine.statuses([job.ref for job in asked]) if asked else {}
        for job in asked:
            job.status = statuses.get(job.name, JobStatus(state=JobState.UNKNOWN))
            job.started = job.started or job.status.state not in _NOT_STARTED
            if job.status.leave and not job.leaves:
                job.leaves = True
                log.info("job_leaves", job=job.name, reason=job.status.leave)
                self._stop(job)
            if job.killed and job.status.state not in _GONE:
                self._kill(job)
        self._note_trouble([job for job in jobs if not job.over])

    def _note_trouble(self, jobs: list[_Job]) -> None:
        """Take note of whether engine or store refuse a job or do not answer; log a change."""
        unknown = [job.status for job in jobs if job.status.state is JobState.UNKNOWN]
        reasons = [job.trouble for job in jobs] + [status.reason for status in unknown]
        reasons += [job.mirror.trouble for job in jobs if job.mirror is not None]
        reason = next(filter(None, reasons), "")
        if bool(reason) == (self._troubled_at is not None):
            return
        if reason:
            self._troubled_at = time.monotonic()
            log.warning("engine_interrupted", engine=self.engine.name, reason=plain(reason))
        else:
            self._troubled_at = None
            log.info("engine_resumed", engine=self.engine.name)

    def _submit(self, job: _Job) -> None:
        if job.request is None or job.over or job.refused:
            return
        if job.mirror is not None and not (job.mirror.ready or job.killed):
            return
        try:
            if not job.killed:
                job.id = self.engine.submit(job.request)
                log.info("job_submitted", engine=self.engine.name, job=job.name, id=job.id)
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
            job.refused = f"{self.engine.name} failed to take the job {job.name}: {error!r}"
            raise

    def _stop(self, job: _Job) -> None:
        try:
            self.engine.stop(job.ref)
        except EngineError as error:
            log.warning("job_not_stopped", job=job.name, error=str(error))

    def _kill(self, job: _Job) -> None:
        if time.monotonic() < job.kill_at:
            return
        try:
            self.engine.kill(job.ref)
        except EngineError as error:
            log.warning("job_not_killed", job=job.name, error=str(error))


@dataclass(slots=True)
class _Job:
    """An attempt's job, followed until its end is known.

    Attributes:
        request: What is still to be submitted; None once the engine has it.
        id: The engine's id.
        status: The engine's last answer.
        started: Whether its launcher may have started.
        killed: Whether it is to end at once.
        leaves: Whether it has been told to continue on another machine.
        tries: Failed tries to submit it.
        kill_at: Monotonic seconds from which the engine is asked to end it.
        refused: Why the engine will never take it; empty if it may.
        trouble: Why it could not be submitted yet.
        submit_at, look_at: Monotonic seconds of the next try to submit it, and the next look.
        gone_at: Monotonic seconds since when it has given no sign of life.
        heartbeat: The launcher's last, as of then.
        unsent: Commands that could not be written yet.
        over: Whether its end has been reported.
        mirror: Of its folder, if its machine does not share it.
    """

    name: str
    folder: Path
    incarnation: str
    request: JobRequest | None
    id: str = ""
    status: JobStatus = field(default_factory=lambda: JobStatus(state=JobState.UNKNOWN))
    started: bool = False
    killed: bool = False
    kill_at: float = 0.0
    leaves: bool = False
    refused: str = ""
    trouble: str = ""
    tries: int = 0
    submit_at: float = 0.0
    look_at: float = 0.0
    gone_at: float = math.inf
    heartbeat: float = 0.0
    unsent: bytes = b""
    over: bool = False
    mirror: AttemptMirror | None = None

    @property
    def ref(self) -> JobRef:
        return JobRef(name=self.name, id=self.id)

    def flush(self) -> None:
        """Write the commands that wait; what cannot be written now waits on."""
        if self.unsent:
            try:
                append_commands(self.folder, self.unsent)
            except OSError as error:
                log.warning("command_not_written", job=self.name, error=str(error))
            else:
                self.unsent = b""


def _revoke(job: str, folder: Path) -> bool:
    """Take the run from the attempt in *folder*; False if storage fails."""
    try:
        revoke(folder)
    except OSError as error:
        log.warning("fence_not_written", job=job, error=str(error))
        return False
    return True


def job_name(spec: RunSpec) -> str:
    """Name of the attempt's job: the same for the same attempt, and of no other."""
    end = f"-{spec.run_id}-{spec.attempt}-{spec.incarnation[:8]}"
    name = f"genesis-{spec.agent}"[: _LONGEST_NAME - len(end)] + end
    return re.sub(r"[^a-z0-9-]", "-", name.lower())[-_LONGEST_NAME:]
