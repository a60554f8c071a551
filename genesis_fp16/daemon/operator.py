"""What an operator may change, from the command line or the API: checked, recorded and audited."""

from __future__ import annotations

import difflib
import os
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.daemon.known_agents import known_agents
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.guard import Decision, clear_trip
from genesis_fp16.domain.reason import one_line
from genesis_fp16.domain.run import Run
from genesis_fp16.guard.evidence import relevant_settings, write_evidence
from genesis_fp16.plugins import agent_entry_points
from genesis_fp16.runs.run_folder import RUN_NUMBER
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events.plain_text import plain

_LONGEST_NAME = 80  # characters shown of a wrong one
_MOST_CHOICES = 5  # runs of one number that are shown
_RECENT_RUNS = 500


class UnknownNameError(GenesisError, LookupError):
    """No agent, or no run, is known by this name."""


class RunEndedError(GenesisError, ValueError):
    """The run cannot be cancelled, because it has ended."""

    exit_code = os.EX_DATAERR


class RunNotQueuedError(GenesisError, ValueError):
    """The run cannot be moved in the queue, because it is not in it."""

    exit_code = os.EX_DATAERR


class AgentNotReadyError(GenesisError, LookupError):
    """The agent is quarantined or disabled, or became so before its run could start."""

    exit_code = os.EX_CONFIG


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardCleared:
    """A rollback by the guard that was ended.

    Attributes:
        decision: What is in force now.
        evidence_error: Why the evidence could not be written; empty if it was.
    """

    decision: Decision
    evidence_error: str = ""


def recent_agents(store: Store) -> set[str]:
    """Agents of the newest runs."""
    return {run.agent for run in store.runs(limit=_RECENT_RUNS)}


def check_agent(name: str, home: Path, store: Store | None = None) -> None:
    """Check that an agent of that name is installed, or known to *store*.

    Args:
        name: Name of the agent.
        home: The absolute home, in which agents may be configured.
        store: Store in which an agent that is not installed may have left runs, decisions of the
            guard or an override; None to accept installed agents only.

    Raises:
        UnknownNameError: The message suggests a name.
    """
    names = set(agent_entry_points(home))
    if name in names:
        return
    if store is not None:
        if store.runs(name, limit=1) or store.guard.history(name, limit=1):
            return
        overrides = {override.agent for override in store.overrides.in_force() if override.agent}
        if name in overrides:
            return
        names |= overrides | recent_agents(store) | set(store.guard.latest())
    raise UnknownNameError(_no_agent(name, names, "installed" if store is None else "known"))


def find_run(store: Store | None, name: str) -> Run:
    """The run with this id or number.

    Args:
        store: The store; None if there is none yet.
        name: Id of the run; or ``#3``, the agent's third run, if one agent alone has so many; or
            ``content#3``, which names the agent.

    Raises:
        UnknownNameError: No run has it, or runs of several agents have this number.
    """
    numbered = RUN_NUMBER.fullmatch(name)
    if store is None:
        runs = []
    elif numbered is not None:
        runs = store.numbered_runs(int(numbered[2]), numbered[1])
    else:
        runs = [run for run in [store.run(name)] if run is not None]
    if len(runs) > 1:
        choices = ", ".join(f"{run.agent}#{run.number}" for run in runs[:_MOST_CHOICES])
        more = ", ..." if len(runs) > _MOST_CHOICES else ""
        raise UnknownNameError(
            f"{len(runs)} agents have a run {name}: name the agent too: {choices}{more}"
        )
    if not runs:
        shown, what = plain(name, _LONGEST_NAME), "number" if "#" in name else "id"
        raise UnknownNameError(f"no run has the {what} {shown!r}: see genesis-fp16 runs")
    return runs[0]


def request_run(settings: Settings, store: Store, agent: str, *, actor: str, reason: str) -> Run:
    """Queue a run of *agent* that is due now; audited. The daemon starts it when a slot is free.

    Raises:
        UnknownNameError: It is not installed.
        AgentNotReadyError: It is quarantined or disabled.
        AgentPausedError: It is paused.
    """
    check_agent(agent, settings.home.absolute())
    store.pauses.check(agent)
    for plugin in known_agents(settings, only=agent):
        if plugin.state not in ("ready", "pending"):
            raise AgentNotReadyError(f"agent {agent!r} is {plugin.state}: {plugin.reason}")
    return store.enqueue(agent, first_seed=settings.seed, actor=actor, reason=reason)


def cancel_run(store: Store | None, name: str, *, actor: str, reason: str) -> Run:
    """Ask the daemon to cancel the run; audited. One that trains writes a checkpoint and stops.

    Raises:
        UnknownNameError: See `find_run`.
        RunEndedError: It has ended.
    """
    run = find_run(store, name)
    if store is None or not store.request_cancel(run.id, actor=actor, reason=reason):
        raise RunEndedError(
            f"{run.id} cannot be cancelled: it has ended with the state {run.state}; "
            f"see genesis-fp16 runs show {run.id}"
        )
    return run


def move_run(store: Store | None, name: str, *, first: bool, actor: str, reason: str) -> Run:
    """Move the queued run to the front or the end of the queue; audited.

    Raises:
        UnknownNameError: See `find_run`.
        RunNotQueuedError: It is not queued.
    """
    run = find_run(store, name)
    if store is None or not store.move_in_queue(run.id, first=first, actor=actor, reason=reason):
        raise RunNotQueuedError(
            f"{run.id} cannot be moved: its state is {run.state}, and only queued runs wait"
        )
    return run


def clear_guard(
    home: Path, settings: Settings | None, store: Store, agent: str, *, actor: str, reason: str
) -> GuardCleared | None:
    """Put *agent* on probation and write evidence; None if the guard has not tripped for it.

    Args:
        home: The absolute home.
        settings: Settings in force, for the evidence; None if they are not known.
        store: The store.
        agent: The agent.
        actor, reason: For the audit trail.

    Raises:
        ReasonMissingError: The reason is empty.
    """
    reason = one_line(reason)
    last = store.guard.latest().get(agent)
    if last is None:
        return None
    cleared = clear_trip(last, now=time.time(), actor=actor, reason=reason)
    if cleared is None:
        return None
    shown = relevant_settings(settings, agent) if settings is not None else None
    problem = ""
    try:
        cleared = write_evidence(home, cleared, {"ends": asdict(last), "settings": shown})
    except OSError as error:  # a full disk must not keep the rollback in force
        problem = str(error)
    try:
        store.guard.add(cleared)
    except SQLAlchemyError:  # it is not in force, so its evidence must not remain
        if cleared.evidence:
            (home / cleared.evidence).unlink(missing_ok=True)
        raise
    return GuardCleared(decision=cleared, evidence_error=problem)


def _no_agent(name: str, names: Collection[str], known: str) -> str:
    shown = plain(name, _LONGEST_NAME)
    close = difflib.get_close_matches(shown, names, n=1)
    suggestion = f"did you mean {close[0]}? " if close else ""
    return f"no agent is named {shown!r}; {suggestion}{known}: {', '.join(sorted(names))}"
