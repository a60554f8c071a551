"""What a server of records must offer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from infrastructure.agent_contract.agent import MisconfiguredError


class SourceServerError(OSError):
    """The server does not answer; the run is tried again, and nothing is lost."""

    def __init__(self, place: str, cause: object) -> None:
        super().__init__(
            f"{place} cannot be read: {cause}; start the server, or correct [source] in the "
            "agent's definition. What was recorded before is kept, and what the server keeps is "
            "read by a later run"
        )


class MissingDriverError(MisconfiguredError):
    """The driver of the server is not installed."""

    def __init__(self, extra: str) -> None:
        super().__init__(
            f"a source of kind {extra!r} needs its driver: pip install 'genesis-fp16[{extra}]'"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One record of the server.

    Attributes:
        cursor: Where to go on after it.
        content: The record, a JSON object.
    """

    cursor: str
    content: bytes


class Entries(Protocol):
    """Records of a server in the order in which they were stored."""

    @property
    def place(self) -> str:
        """Server and name of the records, for messages."""

    def after(self, cursor: str) -> Iterator[Entry]:
        """Yield the records after *cursor*; all if it is empty.

        Raises:
            SourceServerError: The server does not answer, or refuses.
        """

    def lost_since(self, cursor: str, read: int) -> tuple[int, int]:
        """Count what the server dropped before it was read.

        Args:
            cursor: Where the last reading ended; empty before the first.
            read: Number of the last record that was read, among all that were ever added.

        Returns:
            Number of records that were dropped unread, and of the last one before those that
            `after` yields; zeros if unknown.
        """


def read_password(file: Path | None) -> str | None:
    """Return the first line of *file*.

    Raises:
        MisconfiguredError: It cannot be read.
    """
    if file is None:
        return None
    try:
        return file.read_text().partition("\n")[0].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise MisconfiguredError(
            f"source.password_file {file} cannot be read ({error}): let this user read it"
        ) from error
