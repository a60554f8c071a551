"""The mirrors of all attempts; objects of attempts that ended while nobody could delete them."""

from __future__ import annotations

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.remote_attempt import FENCE_FILE
from genesis_fp16.executors.bucket.mirror import AttemptMirror
from genesis_fp16.executors.job_files import read_order, read_result
from genesis_fp16.system.bucket import Bucket
from infrastructure.files import open_regular, write_atomically

LAUNCHER = ("-P", "-m", "genesis_fp16.worker.bucket")
HOME_FILE = "store-id"  # in the home: the folder of the bucket that is this home's alone
RETRY_SECONDS = 60.0  # after a bucket that could not be cleaned
_HOME_ID = re.compile(r"[0-9a-f]{16}")
_LONGEST_ID = 100  # bytes that are read of the file

log = structlog.get_logger()


class HomeIdError(GenesisError, OSError):
    """The file with this home's name in the bucket cannot be read."""

    exit_code = os.EX_IOERR

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} cannot be read: {error.strerror}; put the file back, or make it readable; "
            "if no job of this home runs remove it, and a new one is made"
        )


class Mirrors:
    """Makes and closes the mirrors of one home's attempts in *bucket*.

    Objects that an earlier daemon has left are deleted in a thread of its own.

    Args:
        bucket: May be shared with other homes.
        home: The daemon's home.

    Attributes:
        bucket: The part of it that is this home's alone.

    Raises:
        HomeIdError: The file `store-id` of the home cannot be read.
        OSError: The home cannot be written.
    """

    def __init__(self, bucket: Bucket, home: Path) -> None:
        self.bucket, self._home = bucket.below(_home_id(home)), home
        self._mirrors: list[AttemptMirror] = []
        self._closed = threading.Event()
        threading.Thread(target=self._remove_leftovers, name="bucket-rest", daemon=True).start()

    @property
    def launcher(self) -> tuple[str, ...]:
        """Arguments of the other machine's Python; the name of the job follows."""
        return (*LAUNCHER, self.bucket.url)

    def of(
        self, job: str, folder: Path, incarnation: str, *, on_ready: Callable[[], None]
    ) -> AttemptMirror:
        """A new `AttemptMirror` with these arguments."""
        self._mirrors = [mirror for mirror in self._mirrors if not mirror.is_closed]
        mirror = AttemptMirror(self.bucket, job, folder, incarnation, on_ready)
        self._mirrors.append(mirror)
        return mirror

    def close(self, seconds: float) -> None:
        """Close all mirrors, within *seconds*; jobs go on."""
        until = time.monotonic() + seconds
        self._closed.set()
        for mirror in self._mirrors:
            if not mirror.is_finished:
                mirror.close()
        for mirror in self._mirrors:
            mirror.join(max(0.0, until - time.monotonic()))
            mirror.close()

    def _remove_leftovers(self) -> None:
        """Delete the objects of attempts that have ended; try again while the bucket fails."""
        while True:
            try:
                for job in self._leftovers():
                    self.bucket.delete_all(job)
                    log.info("objects_removed", job=job)
            except OSError as error:
                fields = {"error": str(error), "retry_seconds": RETRY_SECONDS}
                log.warning("objects_not_removed", **fields)
            except Exception:  # of any kind: an odd folder must not look like a crash
                log.exception("objects_not_removed")
                return
            else:
                return
            if self._closed.wait(RETRY_SECONDS):
                return

    def _leftovers(self) -> Iterator[str]:
        """Jobs with objects whose attempt has ended, or whose run has no folder any more."""
        jobs = {name.partition("/")[0] for name in self.bucket.names()}  # before the home is read
        if not jobs:
            return
        runs = [f"-{folder.name.lower()}-" for folder in (self._home / "runs").iterdir()]
        for job in jobs:
            if not any(run in job for run in runs):
                yield job
        for folder in self._home.glob("runs/*/attempts/*"):
            order = read_order(folder)
            if order and order.job in jobs and not is_alive(folder, order.incarnation):
                yield order.job


def _home_id(home: Path) -> str:
    """The name of this home in a bucket, made at the first call."""
    path = home / HOME_FILE
    try:
        with open_regular(path) as file:
            home_id = file.read(_LONGEST_ID).decode(errors="replace").strip()
    except FileNotFoundError:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HomeIdError(path, error) from error
    else:
        if _HOME_ID.fullmatch(home_id):
            return home_id
        consequence = "jobs that still run are lost, and their objects stay in the bucket"
        log.warning("store_id_replaced", path=str(path), consequence=consequence)
    made = secrets.token_hex(8)
    write_atomically(path, made)
    return made


def is_alive(folder: Path, incarnation: str) -> bool:
    """Whether the attempt in *folder* may still run: it has its run, and no result."""
    try:
        fence = (folder.parents[1] / FENCE_FILE).read_text().strip()
    except OSError:
        return True
    return fence == incarnation and read_result(folder, incarnation) is None
