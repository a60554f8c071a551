"""Where the control API listens, and the process that serves it.

The daemon opens the sockets, so that an address in use is an error at its start and a connection
waits while the process is replaced. That process starts with the first connection: a daemon whom
nobody asks pays nothing, and one that is asked too much answers in another process, at a lower
priority than its own loop.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog
from pydantic import BaseModel, ConfigDict

from genesis_fp16.daemon.api_tokens import TokenError, open_tokens
from genesis_fp16.daemon.restart_delay import RestartDelay
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings

SOCKET_NAME = "control.sock"
MODULE = "genesis_fp16.api"
STOP_SECONDS = 2.0
LISTEN_AGAIN_SECONDS = 10.0  # after a former standby could not listen
_BACKLOG = 128
_LONGEST_PATH = 107  # bytes of a Unix socket's path

log = structlog.get_logger()


class ControlListenError(GenesisError, OSError):
    """The control API cannot listen on TCP as the settings ask."""

    exit_code = os.EX_CONFIG

    def __init__(self, settings: Settings, error: OSError) -> None:
        super().__init__(
            f"the control API cannot listen on {settings.api_host}:{settings.api_port}: "
            f"{error.strerror or error}; set GENESIS_API_HOST and GENESIS_API_PORT to a free "
            "address of this machine"
        )


class ApiSpec(BaseModel):
    """What the process that serves is told, on its standard input.

    Attributes:
        parent: Process id of the daemon; it ends with it.
        listeners: File descriptors of the sockets that listen.
        settings: The daemon's.
    """

    model_config = ConfigDict(frozen=True)

    parent: int
    listeners: tuple[int, ...]
    settings: Settings


class ControlApi:
    """The control API of a daemon.

    Args:
        settings: Settings of the daemon.
        clock: Monotonic seconds.
        reserved: What `reserve_address` returned while the daemon waited to lead. If another
            program listens there by now, the daemon leads without, and tries again.

    Raises:
        TokenError: It is to listen on TCP without a token, or the file of tokens is wrong.
        ControlListenError: The address is in use, or does not belong to this machine.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        *,
        reserved: socket.socket | None = None,
    ) -> None:
        self._settings, self._clock = settings, clock
        self._process: subprocess.Popen[bytes] | None = None
        self._delay = RestartDelay(clock)
        self._listeners: list[socket.socket] = []
        self._path = settings.home.absolute() / SOCKET_NAME
        self._reserved = reserved
        self._listen_at, self._listen_failed = clock(), False
        if reserved is not None:
            self._listen_on_reserved()
        elif (address := reserve_address(settings)) is not None:
            try:
                self._listeners.append(_listen_on(address, settings))
            except ControlListenError:
                address.close()
                raise
        if settings.api_socket:
            self._listen_on_path()

    @property
    def pid(self) -> int | None:
        """Process that serves; None while none does."""
        return None if self._process is None else self._process.pid

    def tick(self) -> None:
        """Start the process if a connection waits for it; called in every round of the loop."""
        if self._reserved is not None and self._clock() >= self._listen_at:
            self._listen_on_reserved()
        if self._process is not None:
            if self._process.poll() is None:
                return
            self._report_end(self._process.returncode)
            self._process = None
        if not self._listeners or not self._delay.is_over():
            return
        waiting, _, _ = select.select(self._listeners, [], [], 0)
        if waiting:
            self._start()

    def close(self) -> None:
        """Stop serving and close the sockets."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._settings.api_socket:
            with suppress(OSError):
                self._path.unlink()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def _start(self) -> None:
        listeners = tuple(listener.fileno() for listener in self._listeners)
        spec = ApiSpec(parent=os.getpid(), listeners=listeners, settings=self._settings)
        self._delay.started()
        try:
            with tempfile.TemporaryFile() as told:  # a pipe could be full before it is read
                told.write(spec.model_dump_json().encode())
                told.seek(0)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", MODULE],
                    stdin=told,
                    stdout=subprocess.DEVNULL,
                    pass_fds=listeners,
                    start_new_session=True,  # Ctrl-C in a terminal is the daemon's to handle
                )
        except OSError as error:  # no memory, no room, no process left
            log.error("api_not_started", error=str(error))
            self._delay.ended()
        else:
            log.info("api_started", pid=self._process.pid)

    def _report_end(self, code: int) -> None:
        self._delay.ended()
        log.error(
            "api_ended",
            exit_code=code,
            remedy=f"it starts with the next request, in {self._delay.seconds:g} s at the earliest",
        )

    def _listen_on_reserved(self) -> None:
        """Listen where a standby has reserved the address; a leader does all else without."""
        if self._reserved is None:
            return
        try:
            self._listeners.append(_listen_on(self._reserved, self._settings))
        except ControlListenError as error:
            if not self._listen_failed:
                retry = f"it is tried again every {LISTEN_AGAIN_SECONDS:g} s"
                log.error("control_api_failed", error=str(error), consequence=retry)
            self._listen_failed = True
            self._listen_at = self._clock() + LISTEN_AGAIN_SECONDS
        else:
            self._reserved = None

    def _listen_on_path(self) -> None:
        """Listen on the socket in the home; without it the daemon does all else."""
        try:
            self._listeners.append(listen_in(self._path))
        except OSError as error:
            log.error(
                "control_socket_failed",
                path=str(self._path),
                error=error.strerror or str(error),
                remedy="use a local folder as GENESIS_HOME, or set GENESIS_API_SOCKET=false",
            )
        else:
            log.info("control_socket_opened", path=str(self._path))


def check_tokens(settings: Settings) -> None:
    """Refuse to listen on TCP without a token.

    Raises:
        TokenError: The settings ask for that, or the file of tokens is wrong.
    """
    if settings.api_port is not None and not open_tokens(settings):
        raise TokenError(
            f"the control API may not listen on {settings.api_host}:{settings.api_port} without "
            "a token: set GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE, or unset GENESIS_API_PORT"
        )


def reserve_address(settings: Settings) -> socket.socket | None:
    """Take the TCP address of the control API without listening yet; None if it has none.

    Raises:
        TokenError: It is to listen on TCP without a token, or the file of tokens is wrong.
        ControlListenError: The address is in use, or does not belong to this machine.
    """
    if settings.api_port is None:
        return None
    check_tokens(settings)
    try:
        reserved = bind_address(settings.api_host, settings.api_port)
    except OSError as error:  # includes an unknown host name
        raise ControlListenError(settings, error) from error
    return reserved


def bind_address(host: str, port: int) -> socket.socket:
    """A socket on a TCP address that does not listen yet.

    Raises:
        OSError: The address is in use, unknown, or does not belong to this machine.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def _listen_on(reserved: socket.socket, settings: Settings) -> socket.socket:
    try:
        reserved.listen(_BACKLOG)
    except OSError as error:
        raise ControlListenError(settings, error) from error
    name = reserved.getsockname()
    shown = f"[{name[0]}]" if ":" in name[0] else name[0]
    log.info("control_api_listening", url=f"http://{shown}:{name[1]}/", starts="with a request")
    return reserved


def listen_in(path: Path) -> socket.socket:
    """Listen on a Unix socket at *path* that only its owner may open.

    A longer path than the kernel takes is reached through the folder's descriptor.
    """
    path.unlink(missing_ok=True)  # of a daemon that was killed; we hold the home's lock
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = len(os.fsencode(path)) <= _LONGEST_PATH
        listener.bind(str(path) if short else f"/proc/self/fd/{folder}/{path.name}")
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
        os.umask(before)
    return listener
