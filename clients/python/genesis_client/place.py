"""Where the predictor listens, and where reports wait for it."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import NamedTuple, Union
from urllib.parse import urlsplit

AnyPath = Union[str, "os.PathLike[str]"]
VARIABLES = ("GENESIS_PREDICT_URL", "GENESIS_PREDICT_SOCKET", "GENESIS_PREDICT_TOKEN")
MOST_SOCKET_PATH = 107  # bytes that the address of a Unix socket holds


class Place(NamedTuple):
    """Address of a predictor.

    Attributes:
        socket: Path of its Unix socket, or empty.
        host, port, tls: Its TCP address otherwise.
        prefix: Path before ``/api``.
        token: Bearer token, or empty.
    """

    socket: str = ""
    host: str = ""
    port: int = 0
    tls: bool = False
    prefix: str = ""
    token: str = ""

    def __str__(self) -> str:
        scheme = "https" if self.tls else "http"
        return self.socket or f"{scheme}://{self.host}:{self.port}{self.prefix}"


def find_place(
    home: AnyPath | None = None,
    socket: AnyPath | None = None,
    url: str | None = None,
    token: str | None = None,
) -> Place:
    """Return the predictor that the arguments name, or else the environment.

    The first of these counts: *url*, *socket*, *home*, ``GENESIS_PREDICT_URL``,
    ``GENESIS_PREDICT_SOCKET``, ``GENESIS_HOME``, the folder ``.genesis``.

    Raises:
        ValueError: The URL or the socket's path cannot be used.
    """
    in_url, in_socket, in_token = (os.environ.get(name) or None for name in VARIABLES)
    token = in_token or "" if token is None else token
    if not _is_plain(token):
        raise ValueError("the token must be printable ASCII without spaces")
    if url is None and socket is None and home is None:
        url, socket = in_url, in_socket
    if url is not None:
        return _tcp(url, token)
    if socket is None:
        folder = os.environ.get("GENESIS_HOME") or ".genesis" if home is None else home
        socket = Path(folder) / "predict.sock"
    path = str(Path(socket).absolute())
    if len(os.fsencode(path)) > MOST_SOCKET_PATH:
        raise ValueError(f"the path of a Unix socket holds {MOST_SOCKET_PATH} bytes: {path}")
    return Place(socket=path, token=token)


def _tcp(url: str, token: str) -> Place:
    parts = urlsplit(url)
    fits = parts.scheme in ("http", "https") and parts.hostname and not parts.username
    if not parts.hostname or not fits or not _is_plain(url):
        raise ValueError(
            "the URL must be http://HOST:PORT or https://HOST, in ASCII without spaces, "
            f"got {url!r}"
        )
    tls = parts.scheme == "https"
    port = parts.port or (443 if tls else 80)
    prefix = parts.path.rstrip("/")
    return Place(host=parts.hostname, port=port, tls=tls, prefix=prefix, token=token)


def _is_plain(text: str) -> bool:
    """Whether *text* may stand in the head of a request."""
    return all("!" <= character <= "~" for character in text)


def spool_folder(agent: str, place: Place, parent: AnyPath | None = None) -> Path:
    """Return the folder of the reports of *agent* for *place*.

    It lies in *parent*, by default ``genesis-client`` in ``XDG_STATE_HOME`` (``~/.local/state``).
    """
    if parent is None:
        parent = Path(os.environ.get("XDG_STATE_HOME") or _home() / ".local" / "state")
        parent /= "genesis-client"
    return Path(parent) / f"{agent}-{zlib.crc32(str(place).encode('utf-8', 'replace')):08x}"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError as error:
        raise ValueError("this user has no home: name a folder for reports by spool=") from error
