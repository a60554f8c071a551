"""Slurm by its own commands: sbatch, squeue, scancel, sinfo. Tried with release 22.05.

Slurm may not requeue a job of ours (``--no-requeue``): the daemon starts the next attempt, from the
last checkpoint. A job on a node that is being drained checkpoints and moves to another one.
"""

from __future__ import annotations

import getpass
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from genesis_fp16.executors.remote.engine import (
    ENGINE_LOG,
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
)
from genesis_fp16.settings.source import child_environment

COMMANDS = ("sbatch", "squeue", "scancel", "sinfo")
ANSWER_SECONDS = 20.0  # Slurm's own MessageTimeout is 10 s
SIGNAL_LEAD_SECONDS = 5.0  # SIGTERM comes so long before the time limit, beyond the stop deadline
OLDEST = (20, 11)  # the first release with the options used here
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"}
_TEMPORARY = (  # in the output of a command that may succeed later
    "unable to contact",
    "connect failure",
    "connection refused",
    "connection timed out",
    "timed out",
    "zero bytes",
    "protocol authentication",
    "socket",
    "backup mode",
    "temporarily",
    "qosmaxsubmit",
    "assocmaxsubmit",
    "grpsubmitjobs",
    "configuration source",  # slurmctld, which hands it out, is down
    "fetch_config",
    "maximum number of jobs",
    "transport endpoint",
    "munge",
)
_REMEDIES = {  # by the state in which a job ended
    "OUT_OF_MEMORY": "OOMKilled: raise GENESIS_JOB_MEMORY_MIB",
    "PREEMPTED": "a job of higher priority took its place; it goes on when there is room",
    "NODE_FAIL": "its node was lost; it goes on elsewhere",
    "BOOT_FAIL": "its node did not start; it goes on elsewhere",
    "TIMEOUT": "it took longer than GENESIS_JOB_MINUTES or the partition's limit",
    "DEADLINE": "it took longer than GENESIS_JOB_MINUTES or the partition's limit",
}
_DRAINS = re.compile(r"drain|drng|maint|fail", re.IGNORECASE)


class SlurmEngine:
    """Jobs of the user of this process.

    Args:
        options: More options of sbatch, as on its command line: partition, account, constraints.

    Attributes:
        name: ``slurm``.
    """

    name = "slurm"

    def __init__(self, options: str = "") -> None:
        self._options = tuple(shlex.split(options))

    def submit(self, job: JobRequest) -> str:
        """Submit a batch script that becomes the launcher; return Slurm's number of the job.

        Raises:
            EngineError: sbatch refused it, or slurmctld does not answer.
        """
        known = _run("squeue", *_OF_USER, "--states=all", f"--name={job.name}", "--format=%A")
        if known.split():  # an earlier request of ours got through, though its answer did not
            return known.split()[-1]
        script = f"#!/bin/sh\nexec {shlex.join(job.command)}\n"
        return _run("sbatch", *self._arguments(job), stdin=script).strip().partition(";")[0]

    def _arguments(self, job: JobRequest) -> list[str]:
        wanted = job.resources
        log = f"/tmp/{job.name}.log" if job.folder is None else str(job.folder / ENGINE_LOG)  # noqa: S108 -- of the node
        arguments = [
            *("--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", "--open-mode=append"),
            f"--job-name={job.name}",
            f"--chdir={job.folder or '/tmp'}",  # noqa: S108
            f"--output={log.replace('%', '%%')}",
            f"--cpus-per-task={wanted.cpus}",
        ]
        if wanted.gpus:
            arguments.append(f"--gpus={wanted.gpus}")
        if wanted.memory_mib is not None:
            arguments.append(f"--mem={wanted.memory_mib}M")
        if wanted.minutes is not None:
            arguments.append(f"--time={wanted.minutes}")
        lead = round(job.stop_seconds + SIGNAL_LEAD_SECONDS)  # a partition has limits, too
        return [*arguments, f"--signal=B:TERM@{lead}", *self._options]

    def statuses(self, jobs: Sequence[JobRef]) -> Mapping[str, JobStatus]:
        """Status of each of *jobs*, by one squeue for all; a node that drains is a reason to leave.

        Slurm forgets a job some minutes after its end (MinJobAge).
        """
        names = ",".join(job.name for job in jobs)
        try:
            lines = _run(
                *("squeue", *_OF_USER, "--states=all", f"--name={names}"),
                "--format=%j|%T|%R|%N|%i",
            ).splitlines()
            drained = self._draining_nodes() if any("|RUNNING|" in line for line in lines) else {}
        except EngineError as error:
            unknown = JobStatus(state=JobState.UNKNOWN, reason=str(error))
            return {job.name: unknown for job in jobs}
        statuses = {job.name: JobStatus(state=JobState.NOT_FOUND) for job in jobs}
        for line in lines:  # of two of one name the newer comes last
            if line.count("|") < 4:
                continue
            name, state, reason, node, _ = line.split("|", 4)
            statuses[name] = _status(state, reason, drained.get(node, ""))
        return statuses

    def _draining_nodes(self) -> dict[str, str]:
        """Why, by node, for those that take no more jobs."""
        draining = {}
        for line in _run("sinfo", "--noheader", "--Node", "--format=%N|%T|%E").splitlines():
            if line.count("|") < 2:  # a reason of several lines
                continue
            node, state, reason = line.split("|", 2)
            if _DRAINS.search(state):
                draining[node] = f"node {node} is {state}: {reason}"
        return draining

    def stop(self, job: JobRef) -> None:
        """Send SIGTERM to the launcher.

        Raises:
            EngineError: slurmctld does not answer.
        """
        _cancel("--batch", "--signal=TERM", job)

    def kill(self, job: JobRef) -> None:
        """Kill all processes of the job, or take it out of the queue.

        Raises:
            EngineError: slurmctld does not answer.
        """
        _cancel("--full", "--signal=KILL", job)
        _cancel("", "", job)  # one that waits is not signalled

    def check(self) -> list[Finding]:
        """Commands, version, slurmctld's answer, nodes, and whether sbatch would take a job."""
        if missing := [command for command in COMMANDS if shutil.which(command) is None]:
            remedy = "install Slurm's client commands (Debian: slurm-client) and its slurm.conf"
            return [Finding(ok=False, what=f"not installed: {', '.join(missing)}", remedy=remedy)]
        findings: list[Finding] = []
        try:
            for check in (_check_version, self._check_nodes, self._check_submission):
                findings.append(check())
                if check == self._check_nodes and not findings[-1].ok:
                    break  # Slurm would say that the options are wrong
        except EngineError as error:
            findings.append(Finding.of_error(error))
        return findings

    def _check_nodes(self) -> Finding:
        lines = _run("sinfo", "--noheader", "--Node", "--format=%N|%T|%c|%m|%G").splitlines()
        nodes = {line.split("|")[0]: line.split("|")[1] for line in lines}
        up = re.compile("idle|mix|alloc|plan|comp")
        usable = [name for name, state in nodes.items() if up.match(state)]
        if usable:
            return Finding(ok=True, what=f"{len(usable)} of {len(nodes)} nodes take jobs")
        states = ", ".join(f"{name} is {state}" for name, state in nodes.items()) or "none is known"
        remedy = "see sinfo -R; jobs wait until a node is back"
        return Finding(ok=False, what=f"no node takes jobs: {states}", remedy=remedy)

    def _check_submission(self) -> Finding:
        _run("sbatch", "--test-only", "--job-name=genesis-check", *self._options, stdin=_NOTHING)
        return Finding(ok=True, what="sbatch would take a job with these options")

    def close(self) -> None:
        """Do nothing: there is no connection."""


_NOTHING = "#!/bin/sh\nexit 0\n"
_OF_USER = ("--noheader", f"--user={getpass.getuser()}")


def _status(state: str, reason: str, drained: str) -> JobStatus:
    reason = reason.strip("()")
    if state in _WAITING:
        return JobStatus(state=JobState.WAITING, reason=reason)
    if state in _RUNNING:
        return JobStatus(state=JobState.RUNNING, leave=drained if state == "RUNNING" else "")
    if state == "COMPLETED":
        return JobStatus(state=JobState.SUCCEEDED)
    words = f"{state} {reason}".strip()
    remedy = _REMEDIES.get(state)
    return JobStatus(state=JobState.FAILED, reason=f"{words}; {remedy}" if remedy else words)


def _check_version() -> Finding:
    text = _run("sinfo", "--version").strip()
    version = re.search(r"(\d+)\.(\d+)", text)
    if version is None or (int(version[1]), int(version[2])) < OLDEST:
        what = f"{text} is older than {OLDEST[0]}.{OLDEST[1]:02d}, or of an unknown form"
        return Finding(ok=False, what=what, remedy="install a newer Slurm")
    return Finding(ok=True, what=text)


def _cancel(whom: str, what: str, job: JobRef) -> None:
    arguments = [argument for argument in (whom, what) if argument]
    try:
        _run("scancel", "--quiet", *arguments, f"--user={getpass.getuser()}", f"--name={job.name}")
    except EngineError as error:
        if error.temporary:
            raise  # anything else means that the job is gone


def _run(command: str, *arguments: str, stdin: str = "") -> str:
    """Output of one of Slurm's commands.

    Raises:
        EngineError: It failed, is missing, or did not answer.
    """
    try:
        done = subprocess.run(
            [command, *arguments],
            input=stdin,
            env=child_environment({}),  # a job inherits it
            capture_output=True,
            text=True,
            errors="replace",  # a person may have written a reason in any encoding
            timeout=ANSWER_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise EngineError(
            f"{command} is not installed here; install Slurm's client commands (Debian: "
            "slurm-client), or add their folder to PATH",
            temporary=True,
        ) from None
    except OSError as error:  # such as too many open files
        raise EngineError(f"{command} cannot be started here: {error}", temporary=True) from error
    except subprocess.TimeoutExpired:
        raise EngineError(
            f"{command} has not answered in {ANSWER_SECONDS:g} s; see whether slurmctld runs: "
            "scontrol ping",
            temporary=True,
        ) from None
    if done.returncode == 0:
        return done.stdout
    said = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
    temporary = any(phrase in said.lower() for phrase in _TEMPORARY)
    remedy = "see scontrol ping" if temporary else "see GENESIS_SLURM_OPTIONS and GENESIS_JOB_*"
    raise EngineError(f"{command}: {said}; {remedy}", temporary=temporary)
