"""One attempt in a scratch folder, mirrored to a bucket.

The usual launcher runs there as a child of this process. The main thread carries commands to it,
and its events, logs and signs of life to the bucket; a second thread carries whole files, so that a
large checkpoint delays no rollback. While the bucket does not answer, the worker trains on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from genesis_fp16.domain.bucket_attempt import (
    ORDER,
    Appended,
    BucketFile,
    BucketOrder,
    Update,
    clamped_time,
    command_name,
    update_name,
)
from genesis_fp16.domain.remote_attempt import (
    COMMANDS_FILE,
    FENCE_FILE,
    HEARTBEAT_FILE,
    ORDER_FILE,
    RESULT_FILE,
    Result,
)
from genesis_fp16.domain.run_spec import SPEC_FILE, RunSpec
from genesis_fp16.system.bucket import Bucket, BucketError
from genesis_fp16.system.permissions import write_private
from genesis_fp16.system.processes import become_subreaper, kill_descendants
from genesis_fp16.worker.bucket.folders import ChangedFiles, Folders
from genesis_fp16.worker.bucket.lines import EventLines, GrowingFile
from genesis_fp16.worker.bucket.patience import BUCKET_SECONDS, retried, say
from infrastructure.events.command import Stop

POLL_SECONDS = 0.4  # between two looks for commands and events
ORDER_SECONDS = 1.0  # between two looks whether the run is still ours
FILES_SECONDS = 1.0  # between two looks for whole files
END_SECONDS = 10.0  # in which a launcher that has lost its run must end
ENGINE_LOG = "engine.log"
LAUNCHER = (sys.executable, "-P", "-m", "genesis_fp16.worker.remote")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Batch:
    """Files in the bucket that no update names yet.

    Attributes:
        announced: Number of events that waited for them.
        needs: Growing files, and how much of them must be sent before.
    """

    written: tuple[BucketFile, ...]
    removed: tuple[str, ...]
    announced: int
    needs: dict[Path, int]


class BucketAttempt:
    """One attempt from the download of its files to its result.

    Args:
        job: Name of the job.
        start: This start of it.
        scratch: Empty folder that takes the place of the daemon's home.
    """

    def __init__(
        self, bucket: Bucket, job: str, start: str, order: BucketOrder, scratch: Path
    ) -> None:
        self._bucket, self._job, self._start, self._scratch = bucket, job, start, scratch
        self._order = order
        self._spec = moved(order, scratch)
        self._folder = self._spec.attempt_folder
        self._folder.mkdir(parents=True)
        self._folders = Folders(self._spec)
        self._events = EventLines(self._spec.events_path, self._where(self._spec.events_path))
        self._growing: dict[Path, GrowingFile] = {}
        self._number = self._commands = 0
        self._unsent: Update | None = None
        self._beat = self._order_at = 0.0
        self._is_fenced_off = False
        self._batch: _Batch | None = None
        self._ended, self._gathered = threading.Event(), threading.Event()
        self._lock = threading.Lock()  # held while batch and event lines change

    def run(self) -> None:
        """Download the files, run the launcher, mirror it to its end, and send the result."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        become_subreaper()
        with (self._folder / ENGINE_LOG).open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        say(f"running in {self._scratch} on {socket.gethostname()}")
        try:
            self._download()
        except OSError as error:
            self._fail(f"its files could not be downloaded to {self._scratch}: {error}")
            return
        files = ChangedFiles(
            self._bucket, self._job, f"files/{self._start}", self._scratch, self._folders
        )
        for path in self._folders.growing():
            if path.parent != self._folder:  # a segment that came with the order
                self._growing[path] = GrowingFile(path, self._where(path), path.stat().st_size)
        launcher = subprocess.Popen(
            [*LAUNCHER, str(self._folder / SPEC_FILE), str(os.getpid())], stdin=subprocess.DEVNULL
        )
        threading.Thread(target=self._send_files, args=(files,), daemon=True).start()
        self._follow(launcher)
        self._ended.set()
        if not self._is_fenced_off:
            self._send_rest()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Have the launcher stop its worker, also if it has not started yet."""
        stop = Stop(reason=signal.Signals(number).name)
        self._add_commands(stop.model_dump_json().encode() + b"\n")

    def _add_commands(self, lines: bytes) -> None:
        path = self._folder / COMMANDS_FILE
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
        os.write(descriptor, lines)  # at once: a signal's handler may add another one
        os.close(descriptor)

    def _where(self, path: Path) -> str:
        return str(path.relative_to(self._scratch))

    def _download(self) -> None:
        for file in self._order.files:
            target = self._scratch / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.object:
                retried(lambda file=file, target=target: self._get(file, target))  # type: ignore[misc]
            else:
                target.write_bytes(file.content)
            os.utime(target, ns=(file.modified_ns, file.modified_ns))
        write_private(self._folder / SPEC_FILE, self._spec.model_dump_json(indent=2))
        (self._folder / ORDER_FILE).write_text(self._order.order.model_dump_json())
        (self._spec.run_folder / FENCE_FILE).write_text(self._spec.incarnation)
        retried(self._receive_commands)  # those sent while the job waited

    def _get(self, file: BucketFile, target: Path) -> None:
        self._bucket.download(f"{self._job}/{file.object}", target, file.size)

    # Below: the main thread

    def _follow(self, launcher: subprocess.Popen[bytes]) -> None:
        while launcher.poll() is None:
            began = time.monotonic()
            try:
                self._receive_commands()
                self._look_for_order()
                if not self._is_fenced_off:
                    self._send_update()
            except BucketError as error:
                say(f"the bucket cannot be used now, and the worker goes on: {error}")
            if self._is_fenced_off:
                self._end_at_once(launcher)
                return
            with suppress(subprocess.TimeoutExpired):
                launcher.wait(max(0.0, began + POLL_SECONDS - time.monotonic()))
        kill_descendants()

    def _receive_commands(self) -> None:
        while True:
            content = self._bucket.read(f"{self._job}/{command_name(self._commands)}")
            if content is None:
                return
            self._add_commands(content)
            self._commands += 1

    def _look_for_order(self) -> None:
        if time.monotonic() >= self._order_at:
            self._order_at = time.monotonic() + ORDER_SECONDS
            self._is_fenced_off = self._bucket.read(f"{self._job}/{ORDER}") is None

    def _end_at_once(self, launcher: subprocess.Popen[bytes]) -> None:
        """Let the launcher kill the worker; nothing of it reaches the bucket any more."""
        (self._spec.run_folder / FENCE_FILE).write_text("none")
        try:
            launcher.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.kill()
        kill_descendants()

    def _send_update(self) -> bool:
        """Send what is new, if anything is; what could not be sent is sent again, unchanged."""
        if self._unsent is None:
            self._unsent = self._next_update()
        if self._unsent is None:
            return False
        name = f"{self._job}/{update_name(self._start, self._number)}"
        self._bucket.write(name, self._unsent.model_dump_json().encode())
        self._unsent = None
        self._number += 1
        return True

    def _next_update(self) -> Update | None:
        last, self._beat = self._beat, self._last_beat()
        appended = [gained for path in self._folders.growing() if (gained := self._gained(path))]
        with self._lock:
            batch = self._take_batch()
            self._events.look()
            events = self._events.gained()
        appended += [] if events is None else [events]
        update = Update(
            beat=self._beat != last,
            appended=tuple(appended),
            written=() if batch is None else batch.written,
            removed=() if batch is None else batch.removed,
        )
        return update if update.beat or update.appended or update.has_files else None

    def _gained(self, path: Path) -> Appended | None:
        if path not in self._growing:
            self._growing[path] = GrowingFile(path, self._where(path))
        return self._growing[path].gained()

    def _take_batch(self) -> _Batch | None:
        """The files that an update may name now: what they need has been sent."""
        batch = self._batch
        if batch is None or any(
            path not in self._growing or self._growing[path].offset < size
            for path, size in batch.needs.items()
        ):
            return None
        self._batch = None
        self._events.release(batch.announced)
        return batch

    def _last_beat(self) -> float:
        with suppress(OSError):
            return (self._folder / HEARTBEAT_FILE).stat().st_mtime
        return self._beat

    def _send_rest(self) -> None:
        """Send all that the launcher has left, its result last."""
        give_up = time.monotonic() + BUCKET_SECONDS
        while time.monotonic() < give_up:
            try:
                self._look_for_order()
                if self._is_fenced_off:
                    return
                whole = self._gathered.is_set() and self._batch is None
                if not self._send_update() and whole:
                    self._send_result()
                    return
            except BucketError as error:
                say(f"the bucket cannot take the result now: {error}")
                time.sleep(ORDER_SECONDS)
            time.sleep(POLL_SECONDS / 8)

    def _send_result(self) -> None:
        path = self._folder / RESULT_FILE
        if path.exists():
            content = path.read_bytes()
            result = BucketFile(
                path=self._where(path),
                content=content,
                size=len(content),
                modified_ns=clamped_time(path.stat().st_mtime_ns),
            )
            self._unsent = Update(beat=True, written=(result,))
            retried(self._send_update)

    def _fail(self, error: str) -> None:
        say(error)
        host = socket.gethostname()
        result = Result(
            incarnation=self._spec.incarnation, error=error, host=host, ended_at=time.time()
        )
        (self._folder / RESULT_FILE).write_text(result.model_dump_json())
        self._send_result()

    # Below: the thread of whole files

    def _send_files(self, files: ChangedFiles) -> None:
        while True:
            is_last = self._ended.is_set()  # before it looks
            try:
                if self._batch is None and self._gather(files) and is_last:
                    self._gathered.set()
                    return
            except OSError as error:
                say(f"files cannot be sent now: {error}")
            (self._gathered if self._ended.is_set() else self._ended).wait(FILES_SECONDS / 4)

    def _gather(self, files: ChangedFiles) -> bool:
        """Put what has changed into the bucket, for the main thread to name."""
        with self._lock:
            while self._events.look():
                pass
            announced = self._events.held
        needs = {
            path: path.stat().st_size
            for path in self._folders.growing()
            if path.parent != self._folder
        }
        written, removed = files.send()
        if written or removed or announced:
            batch = _Batch(written=written, removed=removed, announced=announced, needs=needs)
            with self._lock:
                self._batch = batch
        return True


def moved(order: BucketOrder, scratch: Path) -> RunSpec:
    """The specification with every path in the daemon's home at the same place in *scratch*."""

    def move(value: object) -> object:
        if isinstance(value, dict):
            return {key: move(nested) for key, nested in value.items()}
        if isinstance(value, list):
            return [move(nested) for nested in value]
        if isinstance(value, str) and Path(value).is_relative_to(order.home):
            return str(scratch / Path(value).relative_to(order.home))
        return value

    return RunSpec.model_validate(move(json.loads(order.spec)))
