"""What files have gained; an event that announces a file waits until the bucket has that file."""

from __future__ import annotations

from pathlib import Path

from genesis_fp16.domain.bucket_attempt import Appended

_MOST_BYTES = 1 << 20  # of one file in one update
_ANNOUNCEMENTS = tuple(
    f'"kind":"{kind}"'.encode() for kind in ("checkpoint_saved", "published", "finished")
)


class GrowingFile:
    """A file that is only appended to.

    Args:
        path: May not exist yet.
        where: Its path for the other side.
        offset: How much of it the other side has.

    Attributes:
        offset: How much of it has been handed out.
    """

    def __init__(self, path: Path, where: str, offset: int = 0) -> None:
        self._path, self._where = path, where
        self.offset = offset

    def gained(self) -> Appended | None:
        """What it has gained since the last call, or a part; None if nothing."""
        new = _read(self._path, self.offset)
        if not new:
            return None
        appended = Appended(path=self._where, offset=self.offset, content=new)
        self.offset += len(new)
        return appended


class EventLines:
    """The event file; arguments as for `GrowingFile`.

    Its lines leave in order, but for those that announce a checkpoint, a model or the end.
    """

    def __init__(self, path: Path, where: str) -> None:
        self._path, self._where = path, where
        self._read = self._sent = 0
        self._held: list[bytes] = []
        self._free: list[bytes] = []

    @property
    def held(self) -> int:
        """Number of lines that wait for `release`."""
        return len(self._held)

    def look(self) -> bool:
        """Read complete lines that are new; whether there were any."""
        new = _read(self._path, self._read)
        new = new[: new.rfind(b"\n") + 1] or (new if len(new) == _MOST_BYTES else b"")
        self._read += len(new)
        for line in new.splitlines(keepends=True):
            waits = any(announcement in line for announcement in _ANNOUNCEMENTS)
            (self._held if waits else self._free).append(line)
        return bool(new)

    def release(self, count: int) -> None:
        """Let the first *count* lines that wait leave: the bucket has what they announce."""
        self._free += self._held[:count]
        del self._held[:count]

    def gained(self) -> Appended | None:
        """The lines that may leave now; None if there are none."""
        if not self._free:
            return None
        content = b"".join(self._free)
        self._free = []
        appended = Appended(path=self._where, offset=self._sent, content=content)
        self._sent += len(content)
        return appended


def _read(path: Path, offset: int) -> bytes:
    """At most `_MOST_BYTES` from *offset*; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(_MOST_BYTES)
    except OSError:
        return b""
