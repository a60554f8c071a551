"""The tokens that the control API accepts on TCP: of a setting, and of a file."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings
from genesis_fp16.settings.env_file import read_bounded
from genesis_fp16.settings.types import LONGEST_TOKEN, SHORTEST_TOKEN, TOKEN

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")
_UNNAMED = "token"

log = structlog.get_logger()


class TokenError(GenesisError, ValueError):
    """A token is missing, or the file of tokens cannot be used."""

    exit_code = os.EX_CONFIG


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as its hash, and the name for the audit trail."""

    name: str
    digest: bytes


class Tokens:
    """The tokens in force; those of the file are read again whenever it changes.

    Raises:
        TokenError: The file of tokens cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        token = settings.api_token
        self._of_setting = [] if token is None else [NamedToken(_UNNAMED, _digest(token))]
        self._path = None if settings.api_token_file is None else settings.api_token_file.absolute()
        self._seen: tuple[int, ...] | None = None
        self._of_file: list[NamedToken] = []
        if self._path is not None:
            self._seen = _state(self._path)
            self._of_file = read_tokens(self._path)

    def __bool__(self) -> bool:
        return bool(self.in_force())

    def in_force(self) -> list[NamedToken]:
        """All tokens; a file that can no longer be read has none."""
        if self._path is not None and (state := _state(self._path)) != self._seen:
            self._seen = state
            try:
                self._of_file = read_tokens(self._path)
            except TokenError as error:
                self._of_file = []
                log.error("api_tokens_unreadable", error=str(error), effect="none is accepted")
            else:
                log.info("api_tokens_read", names=[token.name for token in self._of_file])
        return [*self._of_setting, *self._of_file]

    def find(self, offered: str) -> NamedToken | None:
        """The token that *offered* is; the time that takes tells nothing about the tokens."""
        digest, known = _digest(offered), None
        for token in self.in_force():
            if hmac.compare_digest(token.digest, digest):
                known = token
        return known


def read_tokens(path: Path) -> list[NamedToken]:
    """Tokens of the file: one a line, perhaps after a name and a space; ``#`` begins a comment.

    Raises:
        TokenError: The file cannot be read, has no token, or a line is none; no token is shown.
    """
    try:
        lines = read_bounded(path).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(
            f"GENESIS_API_TOKEN_FILE {path} cannot be read: {error}; name a text file that this "
            "user may read"
        ) from error
    tokens = []
    for number, line in enumerate(lines, start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, token = words if len(words) == 2 else (_UNNAMED, words[0])
        if len(words) > 2 or not _NAME.fullmatch(name) or not TOKEN.fullmatch(token):
            raise TokenError(
                f"GENESIS_API_TOKEN_FILE {path} line {number} is not a token: write a name, a "
                f"space and {SHORTEST_TOKEN} to {LONGEST_TOKEN} letters, digits or -._~+/="
            )
        tokens.append(NamedToken(name, _digest(token)))
    if not tokens:
        raise TokenError(f"GENESIS_API_TOKEN_FILE {path} has no token: write one into it")
    return tokens


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()


def _state(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
