"""The queue as a person sees it: why each run waits, what for, and when it is likely to start."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass

from genesis_fp16.domain.moments import moment
from genesis_fp16.domain.pause import PausesInForce, pauses_of
from genesis_fp16.domain.queue import forecast, in_turn
from genesis_fp16.domain.run import Ending, Run, RunState
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.runs.quota import used_up
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store

_PREEMPTED = str(Ending(exit_code=os.EX_TEMPFAIL))
RUNS_NAMED = 3  # of those under way that take the slots


@dataclass(frozen=True, kw_only=True, slots=True)
class QueuedRun:
    """A run that waits.

    Attributes:
        place: Place in the queue, from 1.
        waits_for: What it waits for: ``slot``, ``agent`` (another run of it), ``backoff``,
            ``quota``, ``pause``, ``plugin``, ``cancel`` or ``daemon``.
        why: The same in a sentence.
        starts_at: When it is likely to start, in Unix seconds, judged by the time that its agent's
            newest successful runs took; None if that cannot be known.
    """

    run: Run
    place: int
    waits_for: str
    why: str
    starts_at: float | None


def read_queue(
    store: Store, settings: Settings, plugins: list[Plugin], *, serving: bool
) -> list[QueuedRun]:
    """The queued runs, in the order in which they start.

    Args:
        store: Open store.
        settings: Settings that the daemon follows.
        plugins: Installed agents.
        serving: Whether a daemon may serve the store.
    """
    now, unfinished = store.now(), store.unfinished()
    queued = [run for run in unfinished if run.state is RunState.QUEUED]
    if not queued:
        return []
    active = {run.agent: run for run in unfinished if run.active}
    typical = store.times.typical({run.agent for run in unfinished})
    started = store.times.last_started()
    queued = in_turn(queued, lambda agent: settings.for_agent(agent).priority, started)
    look = _Look(
        settings,
        store,
        now=now,
        active=active,
        used_up=used_up(settings, store, {run.agent for run in queued}),
        states={plugin.name: plugin.state for plugin in plugins},
    )
    causes = {run.id: look.cause(run) for run in queued}
    busy_until = {
        agent: _likely_end(run, typical.get(agent), started.get(agent, now), now)
        for agent, run in active.items()
    }
    ready_at = {key: cause.until for key, cause in causes.items() if cause.until is not None}
    free_slots = max(0, settings.slots - len(active))
    starts = forecast(queued, ready_at, busy_until, typical, free_slots, now) if serving else {}
    return [
        QueuedRun(
            run=run,
            place=place,
            waits_for=causes[run.id].waits_for if serving else "daemon",
            why=causes[run.id].why if serving else "no daemon serves: genesis-fp16 serve starts it",
            starts_at=starts.get(run.id),
        )
        for place, run in enumerate(queued, 1)
    ]


@dataclass(frozen=True, slots=True)
class _Cause:
    waits_for: str
    why: str
    until: float | None  # Unix seconds; None: until a person does something


class _Look:
    """What keeps runs from starting, as of one moment."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        now: float,
        active: dict[str, Run],
        used_up: dict[str, float],
        states: dict[str, str],
    ) -> None:
        self._settings, self._now, self._active = settings, now, active
        self._pauses: PausesInForce = store.pauses.in_force()
        self._store, self._used_up, self._states = store, used_up, states
        self._checks: tuple[Callable[[Run], _Cause | None], ...] = (
            *(self._cancel, self._pause, self._plugin, self._quota, self._agent, self._backoff),
        )

    def cause(self, run: Run) -> _Cause:
        """The first cause that keeps *run* from starting; at last that it waits for a slot."""
        for check in self._checks:
            if (cause := check(run)) is not None:
                return cause
        return self._slot()

    def _cancel(self, run: Run) -> _Cause | None:
        return _Cause("cancel", "it is being cancelled", None) if run.cancel_requested else None

    def _pause(self, run: Run) -> _Cause | None:
        for pause in pauses_of(self._pauses, run.agent):
            what = "the agent is paused" if pause.agent else "all agents are paused"
            return _Cause("pause", f"{what} by {pause.actor}: {pause.reason}", None)
        return None

    def _plugin(self, run: Run) -> _Cause | None:
        state = self._states.get(run.agent, "not installed")
        if state == "ready":
            return None
        why = "the agent is being probed" if state == "pending" else f"the agent is {state}"
        return _Cause("plugin", f"{why}: see genesis-fp16 agents", None)

    def _quota(self, run: Run) -> _Cause | None:
        until = self._used_up.get(run.agent)
        if until is None:
            return None
        quota = self._settings.for_agent(run.agent).seconds_per_day
        why = f"the agent has trained for its {quota:g} s of today: until {moment(until)}"
        return _Cause("quota", why, until)

    def _agent(self, run: Run) -> _Cause | None:
        other = self._active.get(run.agent)
        if other is None:
            return None
        return _Cause("agent", f"{_name(other)} is under way: one run of an agent at a time", 0.0)

    def _backoff(self, run: Run) -> _Cause | None:
        if run.is_available(self._now, self._settings.retry_backoff_seconds):
            return None
        ended = self._store.attempts(run.id)[-1].ending
        ended = "preempted" if ended == _PREEMPTED else ended
        why = f"its last attempt: {ended}; it is tried again from {moment(run.available_at)}"
        return _Cause("backoff", why, run.available_at)

    def _slot(self) -> _Cause:
        slots, active = self._settings.slots, list(self._active.values())
        if len(active) < slots:
            return _Cause("slot", "a slot is free: it starts in its turn", 0.0)
        named = ", ".join(map(_name, active[:RUNS_NAMED]))
        more = f" and {len(active) - RUNS_NAMED} more" if len(active) > RUNS_NAMED else ""
        plural = "s are" if slots > 1 else " is"
        return _Cause("slot", f"the {slots} slot{plural} taken by {named}{more}", 0.0)


def _name(run: Run) -> str:
    return f"{run.agent}#{run.number}"


def _likely_end(run: Run, typical: float | None, began_at: float, now: float) -> float:
    """When *run*, whose attempt began at *began_at*, is likely to end; infinite if not known."""
    if typical is None:
        return math.inf
    return max(now, began_at + typical - run.active_seconds)
