"""What the settings' executor lacks, found before the first run is lost to it."""

from __future__ import annotations

import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version

import psutil
from pydantic import ValidationError

import genesis_fp16
from genesis_fp16.domain.remote_attempt import LONGEST_FILE, MACHINE_FILE, MachineReport
from genesis_fp16.executors.bucket.check import check_bucket
from genesis_fp16.executors.bucket.mirrors import LAUNCHER as BUCKET_LAUNCHER
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
from genesis_fp16.system.bucket import Bucket
from infrastructure.files import JsonFileError, read_model

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
        if settings.shared_url is not None:
            findings += check_bucket(Bucket(settings.shared_url))
        yield from findings
        if wait_seconds and all(finding.ok for finding in findings):
            yield from _check_by_job(engine, settings, wait_seconds)
    finally:
        engine.close()


def _check_database(settings: Settings) -> Iterator[Finding]:
    """Report SQLite on a network's file system, where its write-ahead log does not work."""
    home = settings.home.absolute()
    if settings.database_url is not None:
        return
    mounts = [
        partition
        for partition in psutil.disk_partitions(all=True)
        if home.is_relative_to(partition.mountpoint)
    ]
    kind = max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else ""
    if _SHARED.match(kind):
        yield Finding(
            ok=False,
            what=f"the SQLite database is in {home}, which is {kind}: it may be damaged there",
            remedy="set GENESIS_DATABASE_URL to sqlite:// and a file on a local disk, or to "
            "PostgreSQL",
        )


def _check_by_job(engine: Engine, settings: Settings, wait_seconds: float) -> Iterator[Finding]:
    mark = secrets.token_hex(4)
    place = _Place(settings, mark)
    try:
        place.folder.mkdir(parents=True)
    except OSError as error:
        remedy = "make GENESIS_HOME writable"
        yield Finding(ok=False, what=f"{place.folder}: {error}", remedy=remedy)
        return
    options = job_options(settings, _NO_AGENT)
    job = JobRequest(
        name=f"genesis-check-{mark}",
        command=(options.python, *place.probe),
        folder=None if place.bucket else place.folder,
        resources=replace(options.resources, minutes=options.resources.minutes or 5),
    )
    submitted_at = time.time()
    try:
        ref = JobRef(name=job.name, id=engine.submit(job))
    except EngineError as error:
        yield Finding.of_error(error)
        return
    began = time.monotonic()
    said = _wait(engine, ref, place, wait_seconds)
    waited = time.monotonic() - began
    report = place.read()
    if report is None:
        try:
            engine.kill(ref)
        except EngineError as error:
            said += f"; and it cannot be removed: {error}"
        yield Finding(
            ok=False,
            what=f"the job {job.name} has left no report after {waited:.0f} s: {said}",
            remedy=f"{place.remedy}, and {options.python} must exist there with the same packages",
        )
        return
    place.remove()
    yield Finding(ok=True, what=f"{report.host} ran a job and wrote to {place.name}")
    yield from _compare(report, submitted_at, options.resources.gpus)


class _Place:
    """Where a job of a check leaves its report: the home's folder, or the bucket."""

    def __init__(self, settings: Settings, mark: str) -> None:
        self.folder = settings.home.absolute() / "checks" / mark
        self.bucket = Bucket(settings.shared_url) if settings.shared_url else None
        self._object = f"checks/{mark}/{MACHINE_FILE}"
        if self.bucket is None:
            self.name = str(settings.home.absolute())
            self.probe: tuple[str, ...] = (*LAUNCHER, "--probe", str(self.folder))
            self.remedy = (
                f"see {self.folder / ENGINE_LOG}; GENESIS_HOME must be mounted at the same path on "
                "all machines and be writable there"
            )
        else:
            self.name = self.bucket.url
            self.probe = (*BUCKET_LAUNCHER, "--probe", self.bucket.url, self._object)
            self.remedy = (
                "see the engine's own log of the job; GENESIS_SHARED_URL must be reached from all "
                "machines, with credentials in the environment of the job"
            )

    def read(self) -> MachineReport | None:
        """The report; None if none can be read yet."""
        try:
            if self.bucket is None:
                return read_model(self.folder / MACHINE_FILE, MachineReport, limit=LONGEST_FILE)
            report = self.bucket.read(self._object)
            return None if report is None else MachineReport.model_validate_json(report)
        except (OSError, JsonFileError, ValidationError):
            return None

    def remove(self) -> None:
        """Remove the report; the job may still write its last line."""
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.bucket is not None:
            with suppress(OSError):
                self.bucket.delete([self._object])


def _wait(engine: Engine, ref: JobRef, place: _Place, wait_seconds: float) -> str:
    """Wait for the report; return what the engine says last."""
    give_up, gone_at = time.monotonic() + wait_seconds, float("inf")
    said = ""
    while place.read() is None and time.monotonic() < min(give_up, gone_at):
        status = engine.statuses([ref])[ref.name]
        said = f"{engine.name} says {status}"
        if status.state in (JobState.FAILED, JobState.SUCCEEDED):
            gone_at = min(gone_at, time.monotonic() + _LATE_SECONDS)
        time.sleep(_ASK_SECONDS)
    return said


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
        f"{name} {there[name]} (here {value})"
        for name, value in here.items()
        if there[name] != value
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
