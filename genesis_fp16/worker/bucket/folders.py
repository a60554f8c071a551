"""Whole files of the scratch home: which have changed, and their way into the bucket."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

from genesis_fp16.domain.bucket_attempt import (
    LONGEST_INLINE,
    MOST_INLINE,
    NOT_FROM_JOBS,
    BucketFile,
    clamped_time,
)
from genesis_fp16.domain.remote_attempt import FENCE_FILE, HEARTBEAT_FILE, RESULT_FILE
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.system.bucket import Bucket
from infrastructure.agent_contract.run_context import ROWS_FOLDER

_NOT_WHOLE = re.compile(  # of a writer at work; locks; what an attempt elsewhere can encode again
    rf"\..+\.[0-9a-f]{{8}}|\.publishing\.lock|\.?{ROWS_FOLDER}(\.lock)?"
)
_Mark = tuple[int, int, int]  # inode, size, modified


class Folders:
    """The files of an attempt in the scratch home: those that only grow, and all others."""

    def __init__(self, spec: RunSpec) -> None:
        self._agent, self._run, self._attempt = (
            spec.agent_folder,
            spec.run_folder,
            spec.attempt_folder,
        )
        written_here = (*NOT_FROM_JOBS, HEARTBEAT_FILE, RESULT_FILE, spec.events_path.name)
        self._left_out = {self._attempt / name for name in written_here} | {self._run / FENCE_FILE}

    def growing(self) -> list[Path]:
        """Logs of the attempt, and segments of the replay buffer."""
        return [path for path in self._files() if self._grows(path)]

    def whole(self) -> Iterator[tuple[Path, _Mark]]:
        """All other regular files, but for the launcher's own."""
        for path in self._files():
            try:
                status = path.lstat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            if stat.S_ISREG(status.st_mode) and not self._grows(path):
                yield path, mark_of(status)

    def _grows(self, path: Path) -> bool:
        if path.parent == self._attempt:
            return path.suffix in (".log", ".ndjson")
        return path.suffix == ".jsonl" and path.parent == self._agent / "replay"

    def _files(self) -> Iterator[Path]:
        for folder in (self._agent, self._run, self._attempt):
            for place, folders, names in os.walk(folder):
                if folder == self._run and place == str(folder):
                    folders[:] = [name for name in folders if name != "attempts"]
                folders[:] = [name for name in folders if not _NOT_WHOLE.fullmatch(name)]
                for name in names:
                    path = Path(place, name)
                    is_ours = path not in self._left_out and not _NOT_WHOLE.fullmatch(name)
                    if is_ours and _is_text(path):
                        yield path


def _is_text(path: Path) -> bool:
    """Whether an update can name *path*."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def mark_of(status: os.stat_result) -> _Mark:
    """What differs once a file has changed."""
    return status.st_ino, status.st_size, status.st_mtime_ns


class ChangedFiles:
    """Whole files that have changed since they were last sent.

    Args:
        job: Name of the job.
        prefix: Beginning of the names of this start's objects, within the job's.
        home: The scratch home, with the files that the job begins with.
    """

    def __init__(self, bucket: Bucket, job: str, prefix: str, home: Path, folders: Folders) -> None:
        self._bucket, self._job, self._prefix = bucket, job, prefix
        self._home, self._folders = home, folders
        self._sent = self._seen = dict(folders.whole())
        self._count = self._inline = 0

    def send(self) -> tuple[tuple[BucketFile, ...], tuple[str, ...]]:
        """Put what has changed into the bucket; return it, oldest first, and what is gone.

        If it fails, the next call sends it all again.

        Raises:
            BucketError: The bucket refused, or did not answer.
        """
        self._seen, self._inline = dict(self._folders.whole()), 0
        changed = [path for path, mark in self._seen.items() if self._sent.get(path) != mark]
        changed.sort(key=lambda path: self._seen[path][2])
        written = [file for path in changed if (file := self._put(path)) is not None]
        gone = [str(path.relative_to(self._home)) for path in self._sent if path not in self._seen]
        self._sent = self._seen
        return tuple(written), tuple(gone)

    def _put(self, path: Path) -> BucketFile | None:
        """Put one file into the bucket; None if it changes meanwhile: a later call sends it."""
        inode, size, modified_ns = self._seen[path]
        where = str(path.relative_to(self._home))
        name, content = "", b""
        try:
            if size <= LONGEST_INLINE and self._inline < MOST_INLINE:
                content = path.read_bytes()
                self._inline += len(content)
            else:
                self._count += 1
                name = f"{self._prefix}/{self._count}"
                self._bucket.upload(path, f"{self._job}/{name}")
            same = mark_of(path.lstat()) == (inode, size, modified_ns)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            same = False
        if not same:
            self._seen[path] = (0, 0, 0)
            if name:
                self._bucket.delete([f"{self._job}/{name}"])
            return None
        return BucketFile(
            path=where,
            object=name,
            content=content,
            size=size,
            modified_ns=clamped_time(modified_ns),
        )
