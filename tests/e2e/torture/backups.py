"""Backups taken all the time while rounds are played; each is put back and compared."""

from __future__ import annotations

import shutil
import tempfile
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from genesis_fp16.daemon.backup import BackupError, back_up, restore
from genesis_fp16.domain.attempt import events_path
from genesis_fp16.domain.run import Run
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store, StoreError
from tests.e2e.torture.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable

INTERVAL_SECONDS = 1.0


class BackupTaker:
    """Takes a backup of the service's home each second, beside the rounds.

    Attributes:
        taken: Backups that were put back and compared.
        refused: Backups that were refused with words, as of a home that a round has damaged.
        problems: What a backup had lost.
    """

    def __init__(self, service: Callable[[], Service | None]) -> None:
        self.taken, self.refused = 0, 0
        self.problems: list[str] = []
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
                self._take(service, folder)
            except (BackupError, StoreError, OSError):
                self.refused += 1
            finally:
                shutil.rmtree(folder, ignore_errors=True)

    def _take(self, service: Service, folder: Path) -> None:
        settings = Settings(home=service.home, database_url=service.database.url)
        with closing(Store.open(settings)) as store:
            before = {run.id: run for run in store.runs(limit=1000)}
        back_up(settings, folder / "backup")
        local = Settings(home=folder / "home")
        restore(local, folder / "backup")
        with closing(Store.open(local)) as store:
            after = {run.id: run for run in store.runs(limit=1000)}
            for run_id, run in before.items():
                self._compare(run, after.get(run_id), store, settings, local)
        self.taken += 1

    def _compare(
        self, run: Run, restored: Run | None, store: Store, settings: Settings, local: Settings
    ) -> None:
        if restored is None:
            self.problems.append(f"run {run.id} is not in a backup that was begun after it")
            return
        if run.finished and restored != run:
            self.problems.append(f"run {run.id} had ended as {run.state}, restored: {restored}")
        if restored.active:
            self.problems.append(f"run {run.id} is {restored.state} although nobody has it")
        for attempt in store.attempts(run.id):
            path, source = events_path(local.home, attempt), events_path(settings.home, attempt)
            size = path.stat().st_size if path.exists() else 0
            damaged = not source.exists() or source.stat().st_size < attempt.events_offset
            if size < attempt.events_offset and not damaged:
                self.problems.append(f"{path} has {size} bytes, {attempt.events_offset} were read")
