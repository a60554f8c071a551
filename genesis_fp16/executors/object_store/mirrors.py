"""The mirrors of all attempts; objects of attempts that ended while nobody could delete them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import structlog

from genesis_fp16.domain.remote_attempt import FENCE_FILE
from genesis_fp16.executors.job_files import read_order, read_result
from genesis_fp16.executors.object_store.mirror import AttemptMirror
from genesis_fp16.system.object_store import ObjectStore, ObjectStoreError

LAUNCHER = ("-P", "-m", "genesis_fp16.worker.stored")

log = structlog.get_logger()


class Mirrors:
    """Makes and closes the mirrors of one home's attempts in *store*.

    Objects that an earlier daemon has left are deleted in a thread of its own.

    Args:
        home: The daemon's home.
    """

    def __init__(self, store: ObjectStore, home: Path) -> None:
        self.store, self._home = store, home
        self._mirrors: list[AttemptMirror] = []
        threading.Thread(target=self._remove_leftovers, name="store-rest", daemon=True).start()

    @property
    def launcher(self) -> tuple[str, ...]:
        """Arguments of the other machine's Python; the name of the job follows."""
        return (*LAUNCHER, self.store.url)

    def of(
        self, job: str, folder: Path, incarnation: str, *, on_ready: Callable[[], None]
    ) -> AttemptMirror:
        """A new `AttemptMirror` with these arguments."""
        self._mirrors = [each for each in self._mirrors if not each.is_closed]
        mirror = AttemptMirror(self.store, job, folder, incarnation, on_ready)
        self._mirrors.append(mirror)
        return mirror

    def close(self, seconds: float) -> None:
        """Close all mirrors, within *seconds*; jobs go on."""
        until = time.monotonic() + seconds
        for mirror in self._mirrors:
            if not mirror.is_finished:
                mirror.close()
        for mirror in self._mirrors:
            mirror.join(max(0.0, until - time.monotonic()))
            mirror.close()

    def _remove_leftovers(self) -> None:
        """Delete the objects of attempts in the home that have ended.

        Objects of another home stay: several daemons may share a bucket.
        """
        try:
            stored = {name.partition("/")[0] for name in self.store.names()}
            for folder in self._home.glob("runs/*/attempts/*") if stored else ():
                order = read_order(folder)
                if order is None or order.job not in stored or is_alive(folder, order.incarnation):
                    continue
                self.store.delete_all(order.job)
                log.info("stored_objects_removed", job=order.job)
        except ObjectStoreError as error:
            log.warning("stored_objects_not_removed", error=str(error), retry="at the next start")
        except Exception:  # of any kind: an odd folder must not look like a crash
            log.exception("stored_objects_not_removed")


def is_alive(folder: Path, incarnation: str) -> bool:
    """Whether the attempt in *folder* may still run: it has its run, and no result."""
    try:
        fence = (folder.parents[1] / FENCE_FILE).read_text().strip()
    except OSError:
        return True
    return fence == incarnation and read_result(folder, incarnation) is None
