"""The daemon's half of an attempt's mirror: what the job needs goes up, what it writes comes down.

Two threads of each attempt talk to the bucket, so that neither the daemon's loop nor a command
waits for a file: one for commands, fence and events, one for whole files.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TypeVar

import structlog
from pydantic import BaseModel

from genesis_fp16.domain.bucket_attempt import (
    CHOSEN,
    ORDER,
    START_NAME,
    STARTS,
    BucketFile,
    Update,
    command_name,
    update_name,
)
from genesis_fp16.domain.remote_attempt import COMMANDS_FILE, Claim
from genesis_fp16.executors.bucket.files import AttemptFiles
from genesis_fp16.executors.bucket.order import OrderUpload
from genesis_fp16.system.bucket import Bucket, BucketError

POLL_SECONDS = 0.4  # between two looks for commands to send and updates to read
RETRY_SECONDS = 2.0  # after an error of the bucket
APPLIED_SECONDS = 5.0  # between two records of how far updates are applied
_UPDATES_AT_ONCE = 50

_Record = TypeVar("_Record", bound=BaseModel)

log = structlog.get_logger()


class AttemptMirror:
    """One attempt's folder and its objects in *bucket*, while its job may live.

    Args:
        job: Name of the job; the attempt's objects are below it.
        folder: The attempt's folder in the daemon's home.
        incarnation: Of the attempt.
        on_ready: Called in a thread of the mirror once the job may be submitted.

    Attributes:
        ready: Whether all that the job needs is in the bucket.
        looked_at: Monotonic seconds of the last look that found no more updates; infinity
            once none counts any more.
        trouble: Why bucket and folder differ at present, for a person; empty if they do not.
    """

    def __init__(
        self,
        bucket: Bucket,
        job: str,
        folder: Path,
        incarnation: str,
        on_ready: Callable[[], None],
    ) -> None:
        self._bucket, self._job, self._folder = bucket, job, folder
        self._home, self._on_ready = AttemptFiles(folder, incarnation), on_ready
        self.ready, self.looked_at = False, 0.0
        self._troubles = {"messages": "", "files": ""}
        self._inputs = OrderUpload(bucket, job, folder, self._home)
        self._start = ""
        self._commands_sent: int | None = None
        self._commands_offset = 0
        self._next_update = 0
        self._files: SimpleQueue[tuple[int, Update]] = SimpleQueue()
        self._applied = self._unapplied = 0
        self._consumed: list[str] = []  # objects that are needed no more
        self._revoked = False
        self._over = threading.Event()
        self._closed = threading.Event()
        self._messages = threading.Thread(target=self._talk, name="bucket", daemon=True)
        self._messages.start()
        threading.Thread(target=self._apply_files, name="bucket-files", daemon=True).start()

    @property
    def trouble(self) -> str:
        """Why the bucket cannot be written or read at present; empty if it can."""
        return self._troubles["messages"] or self._troubles["files"]

    @property
    def behind(self) -> bool:
        """Whether the job may have written more than the home shows."""
        return self._unapplied > 0 or bool(self.trouble)

    @property
    def waiting(self) -> str:
        """Why the job may not be submitted yet; empty if it may."""
        if self.ready:
            return ""
        return self.trouble or f"its files are on their way to {self._bucket.url}"

    def finish(self) -> None:
        """Change nothing in the home from now on; the threads delete the objects and end."""
        self._home.freeze()
        self._over.set()

    def close(self) -> None:
        """End the threads after what they do now; the job goes on."""
        self._closed.set()

    def join(self, seconds: float) -> None:
        """Wait for that, or for the deletion of a finished attempt's objects."""
        self._messages.join(seconds)

    @property
    def is_finished(self) -> bool:
        """Whether `finish` was called."""
        return self._over.is_set()

    @property
    def is_closed(self) -> bool:
        """Whether the objects of a finished attempt are gone."""
        return not self._messages.is_alive()

    # Below: the thread of commands and events

    def _talk(self) -> None:
        while not self._closed.is_set():
            wait = POLL_SECONDS
            try:
                if self._over.is_set() or self._home.is_fenced_off():
                    if not self._revoked:
                        self._bucket.delete([f"{self._job}/{ORDER}"])  # this kills the worker
                        self._revoked, self.looked_at = True, math.inf
                    if self._over.is_set():
                        self._bucket.delete_all(self._job)
                        return
                else:
                    self._exchange()
                self._note("messages", None)
            except OSError as error:
                self._note("messages", error)
                wait = RETRY_SECONDS
            except Exception as error:  # of any kind: one attempt's mirror must not end silently
                log.exception("bucket_failed", job=self._job)
                self._note("messages", OSError(f"the daemon failed: {error!r}; see its log"))
                wait = RETRY_SECONDS
            (self._closed if self._over.is_set() else self._over).wait(wait)

    def _exchange(self) -> None:
        began = time.monotonic()
        if not self.ready:
            is_over = [self._closed.is_set, self._over.is_set, self._home.is_fenced_off]
            if not self._inputs.send(lambda: any(ended() for ended in is_over)):
                return
            self.ready = True
            self._on_ready()
        self._send_commands()
        if not self._start:
            self._choose()
        for _ in range(_UPDATES_AT_ONCE):
            if not self._start or not self._read_update():
                self.looked_at = began
                return

    def _send_commands(self) -> None:
        if self._commands_sent is None:  # what an earlier daemon has sent
            number = offset = 0
            while (sent := self._bucket.read(f"{self._job}/{command_name(number)}")) is not None:
                number, offset = number + 1, offset + len(sent)
            self._commands_sent, self._commands_offset = number, offset
        try:
            with (self._folder / COMMANDS_FILE).open("rb") as file:
                file.seek(self._commands_offset)
                new = file.read()
        except FileNotFoundError:
            return
        new = new[: new.rfind(b"\n") + 1]
        if new:
            self._bucket.write(f"{self._job}/{command_name(self._commands_sent)}", new)
            self._commands_sent += 1
            self._commands_offset += len(new)

    def _choose(self) -> None:
        """Let one start of the job go on: the one that an earlier daemon chose, or the first."""
        chosen = self._bucket.read(f"{self._job}/{CHOSEN}")
        if chosen is None:
            starts = self._bucket.names(f"{self._job}/{STARTS}")
            names = [start.rpartition("/")[2] for start in starts]
            names = [name for name in names if START_NAME.fullmatch(name)]
            if not names:
                return
            chosen = names[0].encode()
            self._bucket.write(f"{self._job}/{CHOSEN}", chosen)
        start = chosen.decode(errors="replace")
        if not START_NAME.fullmatch(start):
            raise self._wrong(CHOSEN)
        name = f"{STARTS}/{start}"
        self._home.claim(self._parsed(Claim, name, self._bucket.read(f"{self._job}/{name}") or b""))
        self._next_update, self._start = self._home.applied(start), start

    def _read_update(self) -> bool:
        """Read and apply the next update; False if there is none."""
        name = update_name(self._start, self._next_update)
        content = self._bucket.read(f"{self._job}/{name}")
        if content is None:
            return False
        update = self._parsed(Update, name, content)
        if self._closed.is_set() or not self._home.add(update):
            return False
        self._unapplied += 1
        self._next_update += 1
        self._files.put((self._next_update, update))
        return True

    def _parsed(self, kind: type[_Record], name: str, content: bytes) -> _Record:
        """The record in the object *name*.

        Raises:
            BucketError: It is none; the message repeats nothing of it.
        """
        try:
            return kind.model_validate_json(content)
        except ValueError:
            raise self._wrong(name) from None

    def _wrong(self, name: str) -> BucketError:
        return BucketError(
            f"{self._bucket.url}/{self._job}/{name} is not what our launcher writes; cancel the "
            "run, and see the version on the job's machine and who else may write there"
        )

    # Below: the thread of whole files

    def _apply_files(self) -> None:
        record_at = 0.0
        while not (self._closed.is_set() or self._over.is_set()):
            with suppress(Empty):
                number, update = self._files.get(timeout=POLL_SECONDS)
                if not self._retried(partial(self._home.replace, update, self._fetch)):
                    return
                self._applied, self._unapplied = number, self._unapplied - 1
                self._consumed.append(update_name(self._start, number - 1))
                self._consumed += [file.object for file in update.written if file.object]
            if self._consumed and time.monotonic() >= record_at:
                if not self._retried(self._record):
                    return
                record_at = time.monotonic() + APPLIED_SECONDS

    def _retried(self, step: Callable[[], None]) -> bool:
        """Repeat *step* until it succeeds; False if the attempt is over first."""
        while not self._closed.is_set() and not self._over.is_set():
            try:
                step()
            except OSError as error:
                self._note("files", error)
                self._over.wait(RETRY_SECONDS)
            except Exception as error:  # of any kind, as in `_talk`
                self._note("files", OSError(f"the daemon failed: {error!r}; see its log"))
                self._over.wait(RETRY_SECONDS)
            else:
                self._note("files", None)
                return True
        return False

    def _fetch(self, file: BucketFile, target: Path) -> None:
        self._bucket.download(f"{self._job}/{file.object}", target, file.size)

    def _record(self) -> None:
        """Record how far updates are applied; then delete what is needed no more."""
        self._home.record(self._start, self._applied)
        self._bucket.delete(f"{self._job}/{name}" for name in self._consumed)
        self._consumed = []

    def _note(self, thread: str, error: OSError | None) -> None:
        said = "" if error is None else str(error)
        if said and not self._troubles[thread]:
            log.warning("bucket_unreachable", job=self._job, error=said, remedy=_remedy(error))
        elif not said and self._troubles[thread]:
            log.info("bucket_reached", job=self._job)
        self._troubles[thread] = said


def _remedy(error: OSError | None) -> str:
    if isinstance(error, BucketError):
        return "see genesis-fp16 executors check; the daemon tries again by itself"
    return "see the disk of GENESIS_HOME; the daemon tries again by itself"
