"""Bearer tokens of a setting and of a file, each with a role and perhaps an expiry.

A line of the file is ``TOKEN``, ``NAME TOKEN``, ``NAME TOKEN ROLE`` or ``NAME TOKEN ROLE DATE``;
``#`` begins a comment. A token without a role may *operate*, one without a date does not expire.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from infrastructure.files import read_limited

SHORTEST_TOKEN, LONGEST_TOKEN = 16, 512  # characters
TOKEN = re.compile(rf"[A-Za-z0-9._~+/=-]{{{SHORTEST_TOKEN},{LONGEST_TOKEN}}}")
ROLES = ("read", "ask", "operate")
"""What a token may do, each more than the one before: look, ask and report, change anything."""

UNREADABLE = "api_tokens_unreadable"  # event
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_UNNAMED = "token"
_MOST_WORDS = 4  # of a line
_MOST_BYTES = 1 << 20


class TokenFileError(ValueError):
    """The file of tokens cannot be used; the message shows no token."""


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as its hash.

    Attributes:
        name: Name for the audit trail.
        digest: SHA-256 of the token.
        role: One of `ROLES`.
        expires_at: Unix time from which on it counts no more; None for never.
    """

    name: str
    digest: bytes
    role: str = "operate"
    expires_at: float | None = None


class Tokens:
    """The tokens in force; those of the file are read again whenever it changes.

    Args:
        token: Token of a setting; None for none.
        path: File of further tokens; None for none.
        clock: Unix time in seconds.
        notice: Receives what the log should show, event and fields, in place of this process's log.

    Raises:
        TokenFileError: The file cannot be used.
    """

    def __init__(
        self,
        token: str | None,
        path: Path | None,
        clock: Callable[[], float] = time.time,
        notice: Callable[..., None] | None = None,
    ) -> None:
        self._notice = _log if notice is None else notice
        self._of_setting = [] if token is None else [NamedToken(_UNNAMED, _digest(token))]
        self._path, self._clock = None if path is None else path.absolute(), clock
        self._seen: tuple[int, ...] | None = None
        self._of_file: list[NamedToken] = []
        if self._path is not None:
            self._seen = _state(self._path)
            self._of_file = read_tokens(self._path)

    def __bool__(self) -> bool:
        return bool(self.in_force())

    def in_force(self) -> list[NamedToken]:
        """All tokens that have not expired; a file that can no longer be read has none."""
        if self._path is not None and (state := _state(self._path)) != self._seen:
            self._seen = state
            try:
                self._of_file = read_tokens(self._path)
            except TokenFileError as error:
                self._of_file = []
                self._notice(UNREADABLE, error=str(error), effect="none is accepted")
            else:
                names = ", ".join(token.name for token in self._of_file)
                self._notice("api_tokens_read", names=names)
        now = self._clock()
        return [
            token
            for token in (*self._of_setting, *self._of_file)
            if token.expires_at is None or now < token.expires_at
        ]

    def find(self, offered: str) -> NamedToken | None:
        """The token that *offered* is; the time that takes tells nothing about the tokens."""
        digest, known = _digest(offered), None
        for token in self.in_force():
            if hmac.compare_digest(token.digest, digest):
                known = token
        return known


def read_tokens(path: Path) -> list[NamedToken]:
    """Tokens of the file, also expired ones.

    Raises:
        TokenFileError: The file cannot be read, has no token, or a line is none.
    """
    try:
        lines = read_limited(path, _MOST_BYTES).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenFileError(
            f"GENESIS_API_TOKEN_FILE {path} cannot be read: {error}; name a text file that this "
            "user may read"
        ) from error
    tokens = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            tokens.append(_parse(words))
        except ValueError as error:
            raise TokenFileError(
                f"GENESIS_API_TOKEN_FILE {path} line {number}: {error}. Write NAME TOKEN, then "
                "perhaps a role and the date of its end"
            ) from None
    if not tokens:
        raise TokenFileError(f"GENESIS_API_TOKEN_FILE {path} has no token: write one into it")
    return tokens


def _parse(words: list[str]) -> NamedToken:
    """The token in a line of *words*.

    Raises:
        ValueError: They are not one; the message says which part is wrong, and shows none of them,
            since a token may stand in the wrong place.
    """
    if len(words) > _MOST_WORDS:
        raise ValueError(f"it has {len(words)} words, at most {_MOST_WORDS} are possible")
    name, token, role, until = (
        [_UNNAMED, words[0], "operate", ""]
        if len(words) == 1
        else [*words, *["operate", ""][len(words) - 2 :]]
    )
    if not _NAME.fullmatch(name):
        raise ValueError(
            "the name (first word) must have up to 32 letters, digits or ._-, and begin with one "
            "of the first two"
        )
    if not TOKEN.fullmatch(token):
        raise ValueError(
            f"the token ({'only' if len(words) == 1 else 'second'} word) must have "
            f"{SHORTEST_TOKEN} to {LONGEST_TOKEN} letters, digits or -._~+/=, it has {len(token)} "
            "characters"
        )
    if role not in ROLES:
        raise ValueError(f"the role (third word) must be one of {', '.join(ROLES)}")
    try:
        end = datetime.fromisoformat(until).replace(tzinfo=UTC).timestamp() if until else None
    except ValueError:
        raise ValueError("the date (fourth word) must be like 2027-01-31") from None
    return NamedToken(name, _digest(token), role, end)


def _log(event: str, **fields: str) -> None:
    import structlog  # it imports rich, which most commands do without

    log = structlog.get_logger()
    write = log.error if event == UNREADABLE else log.info
    write(event, **fields)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
