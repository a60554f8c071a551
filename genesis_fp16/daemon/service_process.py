"""A process beside the daemon; it is told lines on its standard input and may report lines.

One that answers on sockets which the daemon opens, so that connections survive it, starts with the
first connection: a daemon whom nobody asks pays nothing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

import psutil
import structlog

from genesis_fp16.daemon.restart_delay import RestartDelay

START_SECONDS = 120.0  # until the first report: torch and a plugin are imported on busy cores
HANG_SECONDS = 15.0  # without a report, which is due each second
MEMORY_SECONDS = 1.0  # between two looks at the memory
BACKLOG = 128
_READ_BYTES, _LONGEST_LINE = 1 << 16, 1 << 22
_LONGEST_PATH = 107  # bytes of a Unix socket's path

log = structlog.get_logger()

OnLine = Callable[[bytes], None]


class Events(NamedTuple):
    """Names of the events in the log."""

    started: str
    not_started: str
    ended: str
    hung: str
    too_large: str

    @classmethod
    def of(cls, name: str) -> Self:
        """Those of the service *name*."""
        return cls(*(f"{name}_{event}" for event in cls._fields))


class ServiceProcess:
    """Starts the process, and restarts one that ended, hangs or grows too large.

    Args:
        name: What runs, ``python -m genesis_fp16.NAME``; begins its events in the log.
        clock: Monotonic seconds.
        stop_seconds: Time to end after SIGTERM, then it is killed.
        on_line: Receives each line that it reports; it must report once in *hang_seconds*, or it is
            killed. None: its output is discarded, and it need not report.
        hang_seconds: See *on_line*; `HANG_SECONDS` by default.
        waits: Whether it starts with a connection to one of `listeners`; otherwise at once.
        most_bytes: Memory above which it is killed; None for no bound.
        fields: Fields of its events in the log.

    Attributes:
        listeners: Sockets that listen; the caller appends them.
    """

    def __init__(  # noqa: PLR0913  # what a service is differs in each of them
        self,
        name: str,
        clock: Callable[[], float],
        *,
        stop_seconds: float,
        on_line: OnLine | None = None,
        hang_seconds: float | None = None,
        waits: bool = True,
        most_bytes: int | None = None,
        fields: dict[str, str] | None = None,
    ) -> None:
        self._module, self._clock = f"genesis_fp16.{name}", clock
        self._events = Events.of(name)
        self._stop_seconds, self._on_line, self._most_bytes = stop_seconds, on_line, most_bytes
        self._fields, self._delay = fields or {}, RestartDelay(clock)
        self._hang_seconds = HANG_SECONDS if hang_seconds is None else hang_seconds
        self._waits = waits
        self._when = "with the next request" if waits else "again"
        self._process: subprocess.Popen[bytes] | None = None
        self._unsent, self._unread = b"", b""
        self._report_until = self._look_at = 0.0
        self._killed = False
        self.listeners: list[socket.socket] = []

    @property
    def pid(self) -> int | None:
        """The process that answers; None while none does."""
        return None if self._process is None else self._process.pid

    def tick(self, first_line: Callable[[tuple[int, ...]], str]) -> None:
        """Start the process if it is time; called in every round of the loop.

        Args:
            first_line: Returns what the process is told first, given the descriptors of
                `listeners`, which it inherits.
        """
        if self._process is not None:
            self._send()
            self._read_reports()
            code = self._process.poll()
            if code is None:
                self._check_health(self._process)
                return
            self._end()
            self._delay.ended()
            seconds = f"{self._delay.seconds:g} s"
            remedy = f"it starts {self._when}, in {seconds} at the earliest"
            log.error(self._events.ended, **self._fields, exit_code=code, remedy=remedy)
        if not self._delay.is_over():
            return
        if not self._waits or any(select.select(self.listeners, [], [], 0)):
            self._start(first_line)

    def tell(self, line: str) -> bool:
        """Send *line* to the process; False if it has not read what was sent before."""
        if self._process is None or self._unsent:
            return False
        self._unsent = line.encode() + b"\n"
        self._send()
        return True

    def close(self) -> None:
        """Close the sockets and stop the process."""
        for listener in self.listeners:
            listener.close()
        self.listeners.clear()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._read_reports()
        self._end()

    def _start(self, first_line: Callable[[tuple[int, ...]], str]) -> None:
        descriptors = tuple(listener.fileno() for listener in self.listeners)
        self._delay.started()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", self._module],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if self._on_line is None else subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is the daemon's to handle
            )
        except OSError as error:  # no memory, no room, no process left
            log.error(self._events.not_started, **self._fields, error=str(error))
            self._delay.ended()
            return
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                os.set_blocking(file.fileno(), False)  # it may hang: the daemon must not
        self._unsent, self._unread, self._killed = b"", b"", False
        self._report_until = self._clock() + START_SECONDS
        self.tell(first_line(descriptors))
        log.info(self._events.started, **self._fields, pid=self._process.pid)

    def _send(self) -> None:
        if self._unsent and self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is full, or the process has ended
                written = os.write(self._process.stdin.fileno(), self._unsent)
                self._unsent = self._unsent[written:]

    def _read_reports(self) -> None:
        if self._process is None or self._process.stdout is None or self._on_line is None:
            return
        with suppress(OSError):
            while part := os.read(self._process.stdout.fileno(), _READ_BYTES):
                self._unread += part
                if len(self._unread) > _LONGEST_LINE:  # the rest in the next round
                    break
        *lines, self._unread = self._unread.split(b"\n")
        self._unread = self._unread[:_LONGEST_LINE]
        for line in lines:
            self._report_until = self._clock() + self._hang_seconds
            self._on_line(line)

    def _check_health(self, process: subprocess.Popen[bytes]) -> None:
        now = self._clock()
        if self._killed:
            return
        if self._on_line is not None and now >= self._report_until:
            self._killed = True
            log.error(
                self._events.hung,
                **self._fields,
                pid=process.pid,
                remedy=f"it is killed and starts {self._when}; if this repeats, look for a full "
                "disk, too little memory, or code of the agent that does not return",
            )
        elif self._most_bytes is not None and now >= self._look_at:
            self._look_at = now + MEMORY_SECONDS
            with suppress(psutil.Error):
                size = psutil.Process(process.pid).memory_info().rss
                if size > self._most_bytes:
                    self._killed = True
                    log.error(
                        self._events.too_large,
                        **self._fields,
                        mebibytes=size >> 20,
                        remedy="it is killed and starts with the next request; mend the agent's "
                        "network, or raise GENESIS_PREDICT_OWN_MIB",
                    )
        if self._killed:
            process.kill()

    def _end(self) -> None:
        if self._process is None:
            return
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                with suppress(OSError):
                    file.close()
        with suppress(OSError):  # what it has started ends with it
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process = None


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
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
        os.umask(before)
    return listener
