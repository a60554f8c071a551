"""What a job may change of the daemon's home: its own folders, while the run is its attempt's."""

from __future__ import annotations

import errno
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import structlog
from filelock import FileLock

from genesis_fp16.domain.bucket_attempt import (
    APPLIED_FILE,
    Appended,
    Applied,
    BucketFile,
    Update,
    target_of,
)
from genesis_fp16.domain.remote_attempt import (
    CLAIM_FILE,
    FENCE_FILE,
    HEARTBEAT_FILE,
    LONGEST_FILE,
    Claim,
)
from infrastructure.files import flush_folder, read_model, write_model

_LOCK_SECONDS = 5.0  # for an operator's rollback of a model
_OF_ONE_FILE = {  # errors that no repetition mends, and that say nothing of the disk
    *(errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ELOOP),
    *(errno.ENAMETOOLONG, errno.ENXIO),
}

log = structlog.get_logger()


class AttemptFiles:
    """The files of the attempt in *folder*, as its job's updates change them.

    Args:
        incarnation: Of the attempt.

    Attributes:
        home: The daemon's home.
        agent_folder: Of the attempt's agent; assign it before the first update.
    """

    def __init__(self, folder: Path, incarnation: str) -> None:
        self.home = self.agent_folder = folder.parents[3]
        self._folder, self._incarnation = folder, incarnation
        self._lock = threading.Lock()  # held while a change becomes visible
        self._frozen = False

    def freeze(self) -> None:
        """Change nothing from now on."""
        with self._lock:
            self._frozen = True

    def is_fenced_off(self) -> bool:
        """Whether the run belongs to another attempt now. While storage fails, nobody knows."""
        try:
            fence = (self._folder.parents[1] / FENCE_FILE).read_text()
        except OSError:
            return False
        return fence.strip() != self._incarnation

    def claim(self, claim: Claim) -> None:
        """Show that a launcher has started.

        Raises:
            OSError: It cannot be written.
        """
        if not (self._folder / CLAIM_FILE).exists():
            write_model(self._folder / CLAIM_FILE, claim)

    def applied(self, start: str) -> int:
        """Number of updates of *start* that are recorded as applied."""
        with suppress(OSError, ValueError):
            applied = read_model(self._folder / APPLIED_FILE, Applied, limit=LONGEST_FILE)
            if applied.start == start:
                return applied.updates
        return 0

    def record(self, start: str, updates: int) -> None:
        """Record that *updates* of *start* are applied.

        Raises:
            OSError: It cannot be written.
        """
        write_model(self._folder / APPLIED_FILE, Applied(start=start, updates=updates))

    def add(self, update: Update) -> bool:
        """Append what *update* says and show the sign of life; False if the run is not ours.

        Raises:
            OSError: Something cannot be written.
        """
        with self._lock:
            if self._frozen or self.is_fenced_off():
                return False
            for file in update.appended:
                with self._refusing(file.path):
                    self._append(file)
            if update.beat:
                (self._folder / HEARTBEAT_FILE).touch()
        return True

    def _append(self, appended: Appended) -> None:
        """Append what the file lacks: an earlier daemon may have appended a part."""
        target = self._target(appended.path)
        if target is None:
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(target, flags, 0o640)
        with os.fdopen(descriptor, "wb") as file:
            size = os.fstat(descriptor).st_size
            if appended.offset <= size < appended.offset + len(appended.content):
                file.seek(size)
                file.write(appended.content[size - appended.offset :])

    def replace(self, update: Update, fetch: Callable[[BucketFile, Path], None]) -> None:
        """Write and remove the whole files of *update*, if the run is ours.

        A file that cannot be where it belongs, since a folder is there or a file is in the place
        of one of its folders, is left out, with a line in the log.

        Args:
            fetch: Writes the content of a file that the update does not hold to a path.

        Raises:
            OSError: Something cannot be fetched or written; call it again.
        """
        if not update.has_files:
            return
        ready: list[tuple[Path, Path, int]] = []
        try:
            for file in update.written:
                target = self._target(file.path)
                if target is not None:
                    ready.append((self._temporary(file, target, fetch), target, file.modified_ns))
            with self._locked(update), self._lock:
                if self._frozen or self.is_fenced_off():
                    return
                for path in update.removed:  # first: a folder may take the place of a file
                    target = self._target(path)
                    if target is not None:
                        with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                            target.unlink()
                changed = set()
                for temporary, target, modified_ns in ready:
                    os.utime(temporary, ns=(modified_ns, modified_ns))
                    with self._refusing(str(target.relative_to(self.home))):
                        _put(temporary, target)
                        changed.add(target.parent)
            for folder in changed:
                flush_folder(folder)
        finally:
            for temporary, _, _ in ready:
                temporary.unlink(missing_ok=True)

    def _temporary(
        self, file: BucketFile, target: Path, fetch: Callable[[BucketFile, Path], None]
    ) -> Path:
        """A temporary file with the content of *file*, in the next folder above that exists."""
        place = next(parent for parent in target.parents if os.path.isdir(parent))  # noqa: PTH112 -- of any length
        temporary = place / f".{secrets.token_hex(8)}.{secrets.token_hex(4)}"
        try:
            if file.object:
                fetch(file, temporary)
            else:
                temporary.write_bytes(file.content)
            with temporary.open("rb") as written:
                os.fsync(written.fileno())
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    @contextmanager
    def _refusing(self, path: str) -> Iterator[None]:
        """Leave out the one file at *path* if the block fails by its name alone, and log why."""
        try:
            yield
        except OSError as error:
            if error.errno not in _OF_ONE_FILE:
                raise
            log.warning(
                "job_file_refused",
                attempt=str(self._folder),
                file=repr(path),
                error=error.strerror,
                remedy="see what the home has at that path; the run goes on without this file",
            )

    def _locked(self, update: Update) -> AbstractContextManager[object]:
        """The lock of the agent's models, which an operator's rollback takes as well."""
        paths = [*(file.path for file in update.written), *update.removed]
        if not any((self.home / path).is_relative_to(self.agent_folder) for path in paths):
            return nullcontext()
        self.agent_folder.mkdir(parents=True, exist_ok=True)
        return FileLock(self.agent_folder / ".publishing.lock", timeout=_LOCK_SECONDS)

    def _target(self, path: str) -> Path | None:
        """Where the job's file belongs; None if it may not write there."""
        target = target_of(path, self.home, self._folder, self.agent_folder)
        inside = target is not None and not any(
            os.path.islink(parent)  # noqa: PTH114 -- of any length
            for parent in target.parents
            if self.home in parent.parents
        )
        if target is None or not inside:
            log.warning("job_file_refused", attempt=str(self._folder), file=repr(path))
            return None
        return target


def _put(temporary: Path, target: Path) -> None:
    """Rename *temporary* to *target*, also where folders without a file are in its place."""
    if target.is_dir() and not target.is_symlink():
        for folder, _, _ in os.walk(target, topdown=False):
            Path(folder).rmdir()
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary.replace(target)
