"""Backups taken all the time while rounds are played; each is put back and compared."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from genesis_fp16.daemon.backup import BackupError, restore
from genesis_fp16.domain.attempt import events_path
from genesis_fp16.domain.run import Run
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from tests.e2e.torture.round import ENDED
from tests.e2e.torture.service import Row, Service

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_SECONDS = 1.0


class BackupTaker:
    """Takes a backup of the service's home each second, beside the rounds.

    Attributes:
        taken: Backups that were put back and compared.
        refused: Backups that were refused with words, as of a home that a round has damaged.
        problems: What a backup had lost.
        idle: Held while a backup is taken.
    """

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self.taken, self.refused = 0, 0
        self.problems: list[str] = []
        self.idle = threading.Lock()
        self._service, self._stop = service, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End after the backup that is being taken."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            if (service := self._service()) is None:
                continue
            folder = Path(tempfile.mkdtemp(prefix="torture-backup-"))
            try:
                with self.idle:
                    self._take(service, folder)
            except (BackupError, StoreError, OSError, sqlite3.Error):
                self.refused += 1
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _take(self, service: Service, folder: Path) -> None:
        before = service.rows()
        self._back_up(service, folder / "backup")
        local = Settings(home=folder / "home")
        restore(local, folder / "backup")
        with closing(Store.open(local)) as store:
            after = {run.id: run for run in store.runs(limit=1000)}
            for row in before:
                self._compare(row, after.get(row.id), store, service.home, local)
        self.taken += 1

    def _back_up(self, service: Service, folder: Path) -> None:
        """Take a backup by the command, as an operator does.

        Not in this process: it forks daemons, and SQLite forbids a fork while a connection is open.
        The child takes the parent's locks for its own, with files that it has closed: 50 of 50
        such forks got "locking protocol" or "database is locked".
        """
        environment = os.environ | {"GENESIS_HOME": str(service.home)}
        if service.database.url is not None:
            environment["GENESIS_DATABASE_URL"] = service.database.url
        program = Path(sys.executable).with_name("genesis-fp16")
        command = [str(program), "backup", str(folder)]
        done = subprocess.run(
            command, env=environment, cwd=folder.parent, check=False, capture_output=True, text=True
        )
        if done.returncode:
            raise BackupError(done.stderr)

    def _compare(
        self, row: Row, restored: Run | None, store: Store, home: Path, local: Settings
    ) -> None:
        if restored is None:
            self.problems.append(f"run {row.id} is not in a backup that was begun after it")
            return
        if row.state in ENDED and restored.state != row.state:
            self.problems.append(f"run {row.id} had ended as {row.state}, not {restored.state}")
        if restored.active:
            self.problems.append(f"run {row.id} is {restored.state} although nobody has it")
        for attempt in store.attempts(row.id):
            path, source = events_path(local.home, attempt), events_path(home, attempt)
            size = path.stat().st_size if path.exists() else 0
            damaged = not source.exists() or source.stat().st_size < attempt.events_offset
            if size < attempt.events_offset and not damaged:
                self.problems.append(f"{path} has {size} bytes, {attempt.events_offset} were read")
