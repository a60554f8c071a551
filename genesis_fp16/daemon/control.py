"""Where the control API listens, and the process that serves it.

The daemon opens the sockets, so that an address in use is an error at its start and a connection
waits while the process is replaced. That process starts with the first connection: a daemon whom
nobody asks pays nothing, and one that is asked too much answers in another process, at a lower
priority than its own loop.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from pydantic import BaseModel, ConfigDict

from genesis_fp16.daemon.api_tokens import TokenError, open_tokens
from genesis_fp16.daemon.service_process import BACKLOG, ServiceProcess, bind_address, listen_in
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings

SOCKET_NAME = "control.sock"
STOP_SECONDS = 2.0
LISTEN_AGAIN_SECONDS = 10.0  # after a former standby could not listen

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
        self._service = ServiceProcess("api", clock, stop_seconds=STOP_SECONDS)
        self._path = settings.home.absolute() / SOCKET_NAME
        self._reserved = reserved
        self._listen_at, self._listen_failed = clock(), False
        if reserved is not None:
            self._listen_on_reserved()
        elif (address := reserve_address(settings)) is not None:
            try:
                self._service.listeners.append(_listen_on(address, settings))
            except ControlListenError:
                address.close()
                raise
        if settings.api_socket:
            self._listen_on_path()

    @property
    def pid(self) -> int | None:
        """Process that serves; None while none does."""
        return self._service.pid

    def tick(self) -> None:
        """Start the process if a connection waits for it; called in every round of the loop."""
        if self._reserved is not None and self._clock() >= self._listen_at:
            self._listen_on_reserved()
        self._service.tick(self._spec)

    def close(self) -> None:
        """Stop serving and close the sockets."""
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._settings.api_socket:
            with suppress(OSError):
                self._path.unlink()
        self._service.close()

    def _spec(self, listeners: tuple[int, ...]) -> str:
        spec = ApiSpec(parent=os.getpid(), listeners=listeners, settings=self._settings)
        return spec.model_dump_json()

    def _listen_on_reserved(self) -> None:
        """Listen where a standby has reserved the address; a leader does all else without."""
        if self._reserved is None:
            return
        try:
            self._service.listeners.append(_listen_on(self._reserved, self._settings))
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
            self._service.listeners.append(listen_in(self._path))
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


def _listen_on(reserved: socket.socket, settings: Settings) -> socket.socket:
    try:
        reserved.listen(BACKLOG)
    except OSError as error:
        raise ControlListenError(settings, error) from error
    name = reserved.getsockname()
    shown = f"[{name[0]}]" if ":" in name[0] else name[0]
    log.info("control_api_listening", url=f"http://{shown}:{name[1]}/", starts="with a request")
    return reserved
