"""What the settings' executor lacks, found before the first run is lost to it."""

from __future__ import annotations

import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import psutil
from pydantic import ValidationError

import genesis_fp16
from genesis_fp16.domain.remote_attempt import MACHINE_FILE, MachineReport
from genesis_fp16.executors.choice import job_options, make_engine
from genesis_fp16.executors.remote.engine import (
    ENGINE_LOG,
    Engine,
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
)
from genesis_fp16.executors.remote.executor import LAUNCHER
from genesis_fp16.settings import Settings

CLOCK_SECONDS = 5.0  # by which two clocks may differ, beyond the time that the answer took
_ASK_SECONDS = 0.5
_LATE_SECONDS = 5.0  # by which a report may come after the end of its job
_NO_AGENT = ""
_SHARED = re.compile(r"nfs|cifs|smb|lustre|gpfs|beegfs|ceph|gluster|9p|fuse\.(?!fuseblk)")


def check_executor(settings: Settings, *, wait_seconds: float = 0.0) -> Iterator[Finding]:
    """What can be said about the executor that *settings* name.

    If *wait_seconds* is not 0, a job is submitted that reports what its machine has: whether it
    sees the home at the same path and may write there, its versions, its clock, its GPUs.
    """
    engine = make_engine(settings)
    if engine is None:
        yield Finding(ok=True, what="workers run on this machine")
        return
    try:
        findings = [*engine.check(), *_check_database(settings)]
        yield from findings
        if wait_seconds and all(each.ok for each in findings):
            yield from _check_by_job(engine, settings, wait_seconds)
    finally:
        engine.close()


def _check_database(settings: Settings) -> Iterator[Finding]:
    """Report SQLite on a network's file system, where its write-ahead log does not work."""
    home = settings.home.absolute()
    if settings.database_url is not None:
        return
    mounts = [
        each for each in psutil.disk_partitions(all=True) if home.is_relative_to(each.mountpoint)
    ]
    kind = max(mounts, key=lambda each: len(each.mountpoint)).fstype if mounts else ""
    if _SHARED.match(kind):
        yield Finding(
            ok=False,
            what=f"the SQLite database is in {home}, which is {kind}: it may be damaged there",
            remedy="set GENESIS_DATABASE_URL to sqlite:// and a file on a local disk, or to "
            "PostgreSQL",
        )


def _check_by_job(engine: Engine, settings: Settings, wait_seconds: float) -> Iterator[Finding]:
    mark = secrets.token_hex(4)
    folder = settings.home.absolute() / "checks" / mark
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        yield Finding(ok=False, what=f"{folder}: {error}", remedy="make GENESIS_HOME writable")
        return
    options = job_options(settings, _NO_AGENT)
    job = JobRequest(
        name=f"genesis-check-{mark}",
        command=(options.python, *LAUNCHER, "--probe", str(folder)),
        folder=folder,
        resources=replace(options.resources, minutes=options.resources.minutes or 5),
    )
    submitted_at = time.time()
    try:
        ref = JobRef(name=job.name, id=engine.submit(job))
    except EngineError as error:
        what, _, remedy = str(error).partition("; ")
        yield Finding(ok=False, what=what, remedy=remedy)
        return
    said = _wait(engine, ref, folder, wait_seconds)
    report = _read(folder)
    if report is None:
        try:
            engine.kill(ref)
        except EngineError as error:
            said += f"; and it cannot be removed: {error}"
        yield Finding(
            ok=False,
            what=f"the job {job.name} has not reported within {wait_seconds:g} s: {said}",
            remedy=f"see {folder / ENGINE_LOG}; GENESIS_HOME must be mounted at the same path on "
            f"all machines and be writable there, and {options.python} must exist there with the "
            "same packages",
        )
        return
    shutil.rmtree(folder, ignore_errors=True)  # the job may still write its last line
    yield Finding(ok=True, what=f"{report.host} ran a job and wrote to {settings.home.absolute()}")
    yield from _compare(report, submitted_at, options.resources.gpus)


def _wait(engine: Engine, ref: JobRef, folder: Path, wait_seconds: float) -> str:
    """Wait for the report; return what the engine says last."""
    give_up, gone_at = time.monotonic() + wait_seconds, float("inf")
    said = ""
    while not (folder / MACHINE_FILE).exists() and time.monotonic() < min(give_up, gone_at):
        status = engine.statuses([ref])[ref.name]
        said = f"{engine.name} says {status.state}"
        said += f" ({status.reason})" if status.reason else ""
        if status.state in (JobState.FAILED, JobState.SUCCEEDED):
            gone_at = min(gone_at, time.monotonic() + _LATE_SECONDS)
        time.sleep(_ASK_SECONDS)
    return said


def _read(folder: Path) -> MachineReport | None:
    try:
        return MachineReport.model_validate_json((folder / MACHINE_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _compare(report: MachineReport, submitted_at: float, gpus: int) -> Iterator[Finding]:
    """Compare what a job found with this machine."""
    early, late = report.time - submitted_at, report.time - time.time()
    if early < -CLOCK_SECONDS or late > CLOCK_SECONDS:
        apart = -early if early < -CLOCK_SECONDS else late
        what = f"the clock of {report.host} is {apart:.0f} s off ours"
        yield Finding(ok=False, what=what, remedy="let NTP set the clocks of all machines")
    else:
        yield Finding(ok=True, what=f"the clock of {report.host} agrees with ours")
    here = {"genesis_fp16": genesis_fp16.__version__, "python": platform.python_version()}
    try:
        here["torch"] = version("torch").partition("+")[0]
    except PackageNotFoundError:
        here["torch"] = "missing"
    there = report.model_dump()
    there["torch"] = report.torch.partition("+")[0]
    wrong = [
        f"{name} {there[name]} (here {own})" for name, own in here.items() if there[name] != own
    ]
    if wrong:
        remedy = "install the same versions there, or name another GENESIS_REMOTE_PYTHON"
        yield Finding(ok=False, what=f"{report.host} has {', '.join(wrong)}", remedy=remedy)
    else:
        yield Finding(ok=True, what=f"{report.host} has the same versions as this machine")
    if report.gpus < gpus:
        what = f"{report.host} gave the job {report.gpus} GPUs of {gpus}"
        remedy = "see its driver and its torch; or lower GENESIS_JOB_GPUS"
        yield Finding(ok=False, what=what, remedy=remedy)
    elif gpus:
        yield Finding(ok=True, what=f"{report.host} gave the job {report.gpus} GPUs")
