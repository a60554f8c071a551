"""Where running agents ask, and the process that answers them.

The process is told the agents and their exploration on its standard input, and reports counts on
its standard output. Agents' own code runs in processes of their own, which it asks.
"""

from __future__ import annotations

import grp
import os
import time
from collections.abc import Callable
from contextlib import suppress

import structlog
from pydantic import ValidationError

from genesis_fp16.daemon.api_tokens import TokenError, open_tokens
from genesis_fp16.daemon.service_process import BACKLOG, ServiceProcess, bind_address, listen_in
from genesis_fp16.domain.predictor import (
    OWN_SOCKET,
    AgentFigures,
    KnownAgent,
    Notice,
    PredictorOrder,
    PredictorReport,
    PredictorSpec,
)
from genesis_fp16.settings import Settings
from genesis_fp16.system.tokens import UNREADABLE

SOCKET_NAME = "predict.sock"
STOP_SECONDS = 4.0
OWN_STOP_SECONDS = 0.3  # of a process that keeps nothing, and may hang while the loop waits
TELL_SECONDS = 1.0  # between two looks at what the process should know
_WARNINGS = (
    "agent_not_loaded",
    "exploration_refused",
    "own_predictor_failed",
    "published_model_unusable",
    "request_failed",
    UNREADABLE,
)

log = structlog.get_logger()

OnFigures = Callable[[str, AgentFigures], None]


class PredictionService:
    """The listener for running agents, and the processes that answer them.

    One process answers for all agents. One more answers for each agent that overrides
    `build_model`, once the shared one has reported that it found such a network.

    Args:
        settings: Settings of the daemon.
        agents: Returns the known agents by name.
        on_figures: Receives the counts of an agent, once a second at most.
        clock: Monotonic seconds.

    Raises:
        TokenError: It is to listen on TCP without a token, or the file of tokens is wrong.
    """

    def __init__(
        self,
        settings: Settings,
        agents: Callable[[], dict[str, KnownAgent]],
        on_figures: OnFigures,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._agents, self._on_figures = settings, agents, on_figures
        self._clock = clock
        self._path = settings.home.absolute() / SOCKET_NAME
        self._shared = ServiceProcess(
            "predictor", clock, stop_seconds=STOP_SECONDS, on_line=self._on_report
        )
        self._own: dict[str, OwnProcess] = {}
        self._told: dict[str, KnownAgent] = {}
        self._tell_at = 0.0
        if settings.predictor:
            check_predictor_tokens(settings)
            self._listen()

    @property
    def pid(self) -> int | None:
        """Process that answers for all agents; None while none does."""
        return self._shared.pid

    def own_pid(self, agent: str) -> int | None:
        """Process that answers for *agent* alone; None while none does."""
        own = self._own.get(agent)
        return None if own is None else own.service.pid

    def tick(self) -> None:
        """Start processes that connections wait for; called in every round of the loop."""
        self._tell()
        self._shared.tick(self._first_line)
        for own in list(self._own.values()):
            own.tick()

    def close(self) -> None:
        """Stop answering and close the sockets."""
        if self._shared.listeners:
            with suppress(OSError):
                self._path.unlink()
        self._shared.close()
        for agent in list(self._own):
            self._own.pop(agent).close()

    def _listen(self) -> None:
        """Listen on the socket in the home, and on TCP; without either the daemon does all else."""
        settings = self._settings
        try:
            listener = listen_in(self._path)
            self._shared.listeners.append(listener)
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
            bound.listen(BACKLOG)
        except OSError as error:
            remedy = "set GENESIS_PREDICT_HOST and GENESIS_PREDICT_PORT to a free address"
            log.error("predict_address_failed", address=where, error=str(error), remedy=remedy)
        else:
            self._shared.listeners.append(bound)
            log.info("predictor_listening", port=bound.getsockname()[1])

    def _first_line(self, listeners: tuple[int, ...]) -> str:
        settings = self._settings
        self._told = self._agents()
        spec = PredictorSpec(
            agents=self._told,
            parent=os.getpid(),
            listeners=listeners,
            home=settings.home.absolute(),
            most_models=settings.predict_models,
            outcome_seconds=settings.predict_outcome_seconds,
            seed=settings.seed,
            token=settings.api_token,
            token_file=settings.api_token_file,
        )
        return spec.model_dump_json()

    def _tell(self) -> None:
        """Tell the shared process which agents there are now; end processes of former ones."""
        if self.pid is None or self._clock() < self._tell_at:
            return
        self._tell_at, agents = self._clock() + TELL_SECONDS, self._agents()
        if agents == self._told:
            return
        if self._shared.tell(PredictorOrder(agents=agents).model_dump_json()):
            self._told = agents
        for name, own in list(self._own.items()):
            if agents.get(name) != own.known:  # it is gone, or of another version
                self._own.pop(name).close()

    def _on_report(self, line: bytes) -> None:
        report = _parse_report(line)
        if report is None:
            return
        for agent, figures in report.agents.items():
            if agent in self._told:  # a metric's labels are those of known agents
                self._on_figures(agent, figures)
        for notice in report.notices:
            _log_notice(notice)
        for agent in report.own_networks:
            known = self._told.get(agent)
            if known is not None and known.entry_point and agent not in self._own:
                self._own[agent] = OwnProcess(self._settings, agent, known, self._clock)


class OwnProcess:
    """The process that answers for an agent with a network of its own, and its socket.

    It alone runs the agent's code, so an agent that hangs, crashes or leaks costs its own answers.

    Args:
        settings: Settings of the daemon.
        agent: Name of the agent.
        known: What is known of it.
        clock: Monotonic seconds.

    Attributes:
        known: As given.
        service: Its process.
    """

    def __init__(
        self, settings: Settings, agent: str, known: KnownAgent, clock: Callable[[], float]
    ) -> None:
        self._settings, self._agent, self.known = settings, agent, known
        self._path = settings.home.absolute() / "agents" / agent / OWN_SOCKET
        self.service = ServiceProcess(
            "predictor",
            clock,
            stop_seconds=OWN_STOP_SECONDS,
            on_line=self._on_report,
            most_bytes=settings.predict_own_mib << 20,
            fields={"agent": agent},
        )
        try:
            self.service.listeners.append(listen_in(self._path))
        except OSError as error:
            remedy = "without it the agent's decisions follow the order that is given"
            path = str(self._path)
            log.error("predict_socket_failed", path=path, error=str(error), consequence=remedy)

    def tick(self) -> None:
        """Start the process if a connection waits for it; end it if it hangs or is too large."""
        self.service.tick(self._first_line)

    def close(self) -> None:
        """Stop answering and close the socket."""
        with suppress(OSError):
            self._path.unlink()
        self.service.close()

    def _first_line(self, listeners: tuple[int, ...]) -> str:
        spec = PredictorSpec(
            agents={self._agent: self.known},
            parent=os.getpid(),
            listeners=listeners,
            home=self._settings.home.absolute(),
            most_models=1,
            outcome_seconds=self._settings.predict_outcome_seconds,
            own=self._agent,
        )
        return spec.model_dump_json()

    def _on_report(self, line: bytes) -> None:
        report = _parse_report(line)
        for notice in report.notices if report is not None else []:
            _log_notice(notice)


def _parse_report(line: bytes) -> PredictorReport | None:
    try:
        return PredictorReport.model_validate_json(line)
    except ValidationError:
        log.error("predictor_report_unreadable", text=line[:200].decode(errors="replace"))
        return None


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
