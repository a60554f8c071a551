"""Where running agents ask, and the process that answers them.

The daemon opens the sockets, so that a connection waits while the process is replaced. The process
starts with the first connection: a daemon whom no agent asks pays nothing for it. It is told the
agents and their exploration on its standard input, and reports counts on its standard output.
"""

from __future__ import annotations

import grp
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from pydantic import ValidationError

from genesis_fp16.daemon.api_tokens import TokenError, open_tokens
from genesis_fp16.daemon.control import bind_address, listen_in
from genesis_fp16.daemon.restart_delay import RestartDelay
from genesis_fp16.domain.predictor import (
    AgentFigures,
    Notice,
    PredictorOrder,
    PredictorReport,
    PredictorSpec,
)
from genesis_fp16.settings import Settings
from genesis_fp16.system.tokens import UNREADABLE

SOCKET_NAME = "predict.sock"
MODULE = "genesis_fp16.predictor"
STOP_SECONDS = 4.0
TELL_SECONDS = 1.0  # between two looks at what the process should know
_BACKLOG = 128
_READ_BYTES, _LONGEST_LINE = 1 << 16, 1 << 22
_WARNINGS = ("exploration_refused", "published_model_unusable", "request_failed", UNREADABLE)

log = structlog.get_logger()

OnFigures = Callable[[str, AgentFigures], None]


class PredictionService:
    """The listener for running agents, and its process.

    Args:
        settings: Settings of the daemon.
        agents: Returns the exploration of each known agent by its name.
        on_figures: Receives the counts of an agent, once a second at most.
        clock: Monotonic seconds.

    Raises:
        TokenError: It is to listen on TCP without a token, or the file of tokens is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Callable[[], dict[str, str]],
        on_figures: OnFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._agents, self._on_figures = settings, agents, on_figures
        self._clock, self._delay = clock, RestartDelay(clock)
        self._path = settings.home.absolute() / SOCKET_NAME
        self._process: subprocess.Popen[bytes] | None = None
        self._told: dict[str, str] = {}
        self._tell_at = 0.0
        self._unsent, self._unread = b"", b""
        self._listeners: list[socket.socket] = []
        if settings.predictor:
            check_predictor_tokens(settings)
            self._listen()

    @property
    def pid(self) -> int | None:
        """Process that answers; None while none does."""
        return None if self._process is None else self._process.pid

    def tick(self) -> None:
        """Start the process if a connection waits for it; called in every round of the loop."""
        if self._process is not None:
            self._read_reports()
            self._tell()
            code = self._process.poll()
            if code is None:
                return
            self._end_process()
            self._delay.ended()
            remedy = (
                f"it starts with the next request, in {self._delay.seconds:g} s at the earliest"
            )
            log.error("predictor_ended", exit_code=code, remedy=remedy)
        if not self._listeners or not self._delay.is_over():
            return
        waiting, _, _ = select.select(self._listeners, [], [], 0)
        if waiting:
            self._start()

    def close(self) -> None:
        """Stop answering and close the sockets."""
        for listener in self._listeners:
            listener.close()
        if self._listeners:
            with suppress(OSError):
                self._path.unlink()
        self._listeners.clear()
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._read_reports()
        self._end_process()

    def _listen(self) -> None:
        """Listen on the socket in the home, and on TCP; without either the daemon does all else."""
        settings = self._settings
        try:
            listener = listen_in(self._path)
            self._listeners.append(listener)
            if settings.predict_group:
                os.chown(self._path, -1, grp.getgrnam(settings.predict_group).gr_gid)
                self._path.chmod(0o660)
        except (OSError, KeyError) as error:
            log.error(
                "predict_socket_failed",
                path=str(self._path),
                error=str(error),
                remedy="use a local folder as GENESIS_HOME, name in GENESIS_PREDICT_GROUP a group "
                "of the daemon's user, or set GENESIS_PREDICTOR=false",
            )
        if settings.predict_port is None:
            return
        where = f"{settings.predict_host}:{settings.predict_port}"
        try:
            bound = bind_address(settings.predict_host, settings.predict_port)
            bound.listen(_BACKLOG)
        except OSError as error:
            remedy = "set GENESIS_PREDICT_HOST and GENESIS_PREDICT_PORT to a free address"
            log.error("predict_address_failed", address=where, error=str(error), remedy=remedy)
        else:
            self._listeners.append(bound)
            log.info("predictor_listening", port=bound.getsockname()[1])

    def _start(self) -> None:
        settings = self._settings
        descriptors = tuple(listener.fileno() for listener in self._listeners)
        self._told = self._agents()
        spec = PredictorSpec(
            agents=self._told,
            parent=os.getpid(),
            listeners=descriptors,
            home=settings.home.absolute(),
            most_models=settings.predict_models,
            outcome_seconds=settings.predict_outcome_seconds,
            seed=settings.seed,
            token=settings.api_token,
            token_file=settings.api_token_file,
        )
        self._delay.started()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=descriptors,
                start_new_session=True,  # Ctrl-C in a terminal is the daemon's to handle
            )
        except OSError as error:  # no memory, no room, no process left
            log.error("predictor_not_started", error=str(error))
            self._delay.ended()
            return
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                os.set_blocking(file.fileno(), False)  # it may hang: the daemon must not
        self._unsent, self._unread = spec.model_dump_json().encode() + b"\n", b""
        self._send()
        log.info("predictor_started", pid=self._process.pid)

    def _tell(self) -> None:
        """Tell the process which agents there are now."""
        if self._clock() >= self._tell_at and not self._unsent:
            self._tell_at = self._clock() + TELL_SECONDS
            agents = self._agents()
            if agents != self._told:
                self._told = agents
                self._unsent = PredictorOrder(agents=agents).model_dump_json().encode() + b"\n"
        self._send()

    def _send(self) -> None:
        if self._unsent and self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is full, or the process has ended
                written = os.write(self._process.stdin.fileno(), self._unsent)
                self._unsent = self._unsent[written:]

    def _read_reports(self) -> None:
        if self._process is None or self._process.stdout is None:
            return
        with suppress(OSError):
            while part := os.read(self._process.stdout.fileno(), _READ_BYTES):
                self._unread += part
        *lines, self._unread = self._unread.split(b"\n")
        self._unread = self._unread[:_LONGEST_LINE]
        for line in lines:
            try:
                report = PredictorReport.model_validate_json(line)
            except ValidationError:
                log.error("predictor_report_unreadable", text=line[:200].decode(errors="replace"))
                continue
            for agent, figures in report.agents.items():
                if agent in self._told:  # a metric's labels are those of known agents
                    self._on_figures(agent, figures)
            for notice in report.notices:
                _log_notice(notice)

    def _end_process(self) -> None:
        if self._process is None:
            return
        for file in (self._process.stdin, self._process.stdout):
            if file is not None:
                with suppress(OSError):
                    file.close()
        self._process = None


def check_predictor_tokens(settings: Settings) -> None:
    """Refuse to listen on TCP without a token.

    Raises:
        TokenError: The settings ask for that, or the file of tokens is wrong.
    """
    if settings.predict_port is not None and not open_tokens(settings):
        raise TokenError(
            f"the predictor may not listen on {settings.predict_host}:{settings.predict_port} "
            "without a token: set GENESIS_API_TOKEN or GENESIS_API_TOKEN_FILE, or unset "
            "GENESIS_PREDICT_PORT"
        )


def _log_notice(notice: Notice) -> None:
    write = log.warning if notice.event in _WARNINGS else log.info
    fields = {name: text for name, text in notice.fields.items() if name != "event"}
    write(notice.event, **fields)
