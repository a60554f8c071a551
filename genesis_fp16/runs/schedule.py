"""The timetable: queues a run of each agent that is due, and records the due times."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import structlog

from genesis_fp16.domain.run import Run
from genesis_fp16.domain.schedule import (
    MAX_CATCH_UP_RUNS,
    DueTime,
    local_due,
    longest_gap,
    missed,
    next_due,
)
from genesis_fp16.store import Store
from infrastructure.agent_contract import Schedule

MAX_AGENTS, MAX_RUNS = 50, 100  # handled in one round of the loop: some 0.05 s

log = structlog.get_logger()


class Timetable:
    """Queues a run of every agent that is due; *first_seed* seeds an agent's first run.

    What becomes due while an agent is paused is handled once it is resumed, by its ``catch_up``,
    as what becomes due while no daemon runs; also if the daemon was started again in between.

    A round handles at most `MAX_AGENTS` agents, in one transaction, the longest due first: if
    1,000 are due together, the rounds between serve everything else, such as a rollback.

    Attributes:
        next_runs: Agent to its next due time in Unix seconds; None if it is never due again.
        periods: Agent to the longest gap in seconds between its next due times; NaN if fewer than
            two.
        lags: Agent to how late its last fire was noticed, in seconds.
        changed: Agents for which one of these has changed; the reader empties it.
        is_paused: Returns whether the agent is paused.
        count_outcomes: Returns how many outcomes of the agent wait for its next run.
    """

    def __init__(self, store: Store, first_seed: int) -> None:
        self._store = store
        self._first_seed = first_seed
        self._added: dict[str, Schedule] = {}  # their last due times are not known yet
        self._changed_schedules: dict[str, Schedule] = {}  # take effect in the next round
        self._schedules: dict[str, Schedule] = {}
        self._handled_until: dict[str, float] = {}  # due times; without agents that were never due
        self._missed: set[str] = set()  # agents that were due while no daemon ran
        self._heap: list[tuple[float, str]] = []  # moment to handle an agent, with stale entries
        self._handle_at: dict[str, float] = {}
        self._last_tick = -math.inf
        self._skipped_for: dict[str, str] = {}
        self._by_data: dict[str, Schedule] = {}  # agents that outcomes make due
        self._held: set[str] = set()  # agents that were due while they were paused
        self.is_paused: Callable[[str], bool] = lambda _agent: False
        self.count_outcomes: Callable[[str], int] = lambda _agent: 0
        self.next_runs: dict[str, float | None] = {}
        self.periods: dict[str, float] = {}
        self.lags: dict[str, float] = {}
        self.changed: set[str] = set()

    def add(self, agent: str, schedule: Schedule) -> None:
        """Add *agent*; the next rounds queue the runs it missed while no daemon ran.

        An agent that never ran is due at once, unless its schedule has ``catch_up`` ``none``.

        Raises:
            ValueError: The schedule's cron expression is malformed.
        """
        next_due(schedule, 0.0)  # raises here, before anything is recorded
        self._added[agent] = schedule
        self._held.discard(agent)
        self._changed_schedules.pop(agent, None)  # of the version that was added before

    def change(self, agent: str, schedule: Schedule) -> None:
        """Give *agent*, which was added, another schedule, if it differs.

        Due times up to now count by the schedule so far, those after it by the new one: a change
        makes no run of the past due.

        Raises:
            ValueError: The schedule's cron expression is malformed.
        """
        next_due(schedule, 0.0)
        if agent in self._added:
            self._added[agent] = schedule
        elif schedule != self._changed_schedules.get(agent, self._schedules[agent]):
            self._changed_schedules[agent] = schedule

    def has_work(self, now: float) -> bool:
        """Whether `tick` has something to do at *now*, in Unix seconds."""
        due = bool(self._heap) and self._heap[0][0] <= now
        return due or bool(self._added or self._changed_schedules) or now < self._last_tick

    def remove(self, agent: str) -> None:
        """Queue no more runs of *agent*; if it is added again, it has missed those meanwhile."""
        known: dict[str, Any]
        by_agent = (self._added, self._schedules, self._by_data, self._handled_until)
        for known in (*by_agent, self._handle_at):
            known.pop(agent, None)
        self._changed_schedules.pop(agent, None)
        for shown in (self.next_runs, self.periods, self.lags):
            shown.pop(agent, None)
        self._missed.discard(agent)
        self._held.discard(agent)
        self.changed.discard(agent)

    def tick(self, now: float) -> None:
        """Queue a run of each agent whose due time has come, as far as one round goes.

        If the store fails, the next call tries again. *now* is in Unix seconds.
        """
        if now < self._last_tick:
            self._count_from(now)
        self._last_tick = now
        self._read_last_due(now)
        self._release()
        self._look_at_data(now)
        if not self._added:  # else one of those may have been due for longer
            self._record_due(now)
        self._apply_changes(now)

    def _count_from(self, now: float) -> None:
        """Handle agents again that were handled later than *now*: the clock was set back."""
        for agent, until in self._handled_until.items():
            if until > now and agent not in self._by_data:
                self._handle(agent, at=now)

    def _look_at_data(self, now: float) -> None:
        """Make agents due of whose outcomes enough wait, at most as often as they say."""
        for agent, schedule in self._by_data.items():
            last, gap = self._handled_until.get(agent, -math.inf), schedule.every_seconds or 0.0
            if last <= now < last + gap or self.is_paused(agent):
                continue
            if self.count_outcomes(agent) < (schedule.outcomes or 0):
                continue
            if schedule.overlap == "replace" or not self._store.unfinished(agent):
                self._handle(agent, at=now)

    def _release(self) -> None:
        """Handle what became due while agents were paused that are so no longer."""
        for agent in [name for name in self._held if not self.is_paused(name)]:
            self._held.discard(agent)
            self._missed.add(agent)
            self._handle(agent, at=self._handle_at[agent])

    def _handle(self, agent: str, *, at: float) -> None:
        self._handle_at[agent] = at
        heappush(self._heap, (at, agent))

    def _read_last_due(self, now: float) -> None:
        """Take in agents that were added."""
        agents = list(islice(self._added, MAX_AGENTS))
        if not agents:
            return
        last_due = self._store.last_due(*agents)
        for agent in agents:
            schedule = self._schedules[agent] = self._added.pop(agent)
            last = last_due.get(agent)
            if last is not None:
                self._handled_until[agent] = last
            if schedule.outcomes is not None:
                self._plan(agent, now)
                continue
            # Due at once if it never was, or if the clock has been set back since.
            due_at = now if last is None or last > now else next_due(schedule, last)
            if due_at is None or due_at > now:
                self._plan(agent, now)
            else:
                self._missed.add(agent)
                self._handle(agent, at=due_at)

    def _plan(self, agent: str, now: float) -> None:
        """Compute when *agent* is due next."""
        schedule = self._schedules[agent]
        self._handle_at.pop(agent, None)
        self._by_data.pop(agent, None)
        if schedule.outcomes is not None:
            self._by_data[agent] = schedule
        due_at = next_due(schedule, now)
        if agent not in self.next_runs:
            next_run, local = _timestamp(schedule, due_at), local_due(schedule, due_at)
            fields = {} if local is None else {"local_time": local}
            log.info(
                "agent_scheduled", agent=agent, schedule=str(schedule), next_run=next_run, **fields
            )
        self.next_runs[agent] = due_at
        self.periods[agent] = longest_gap(schedule, now)
        self.changed.add(agent)
        if due_at is not None:
            self._handle(agent, at=due_at)

    def _apply_changes(self, now: float) -> None:
        """Plan again agents whose schedule has changed, once nothing of the old one is due."""
        planned = (
            (self._handle_at.get(schedule, math.inf), schedule)
            for schedule in self._changed_schedules
        )
        agents = [agent for at, agent in planned if at > now][:MAX_AGENTS]
        if not agents:
            return
        times = {DueTime(agent=agent, last_due=now): list[float]() for agent in agents}
        self._store.record_due(times, first_seed=self._first_seed)
        for agent in agents:
            self._schedules[agent] = self._changed_schedules.pop(agent)
            self._handled_until[agent] = now
            self._handle_at.pop(agent, None)
            self.next_runs.pop(agent, None)
            self._plan(agent, now)

    def _record_due(self, now: float) -> None:
        """Queue the runs that are due."""
        taken: list[tuple[float, str]] = []
        try:
            due = self._take_due(now, taken)
            if due:
                self._apply_overlap(due)
                times = {
                    DueTime(agent=agent, last_due=now): moments for agent, moments in due.items()
                }
                self._store.record_due(times, first_seed=self._first_seed)
        except BaseException:
            self._heap += taken
            heapify(self._heap)
            raise
        for at, agent in taken:
            if self._handle_at.get(agent) != at or agent in self._held:
                continue  # planned again since, or paused
            by_data = agent in self._by_data
            if not by_data and agent not in self._missed and self._handled_until[agent] <= now:
                self.lags[agent] = now - at
            self._missed.discard(agent)
            self._handled_until[agent] = now
            self._plan(agent, now)

    def _take_due(self, now: float, taken: list[tuple[float, str]]) -> dict[str, list[float]]:
        """Move entries from the heap to *taken*; the due times of their agents."""
        due: dict[str, list[float]] = {}
        runs = 0
        while self._heap and self._heap[0][0] <= now and len(due) < MAX_AGENTS and runs < MAX_RUNS:
            entry = heappop(self._heap)
            taken.append(entry)
            at, agent = entry
            if self._handle_at.get(agent) != at:
                continue  # planned again since
            if self.is_paused(agent):
                self._held.add(agent)
                continue
            due[agent] = self._due_times(agent, now)
            runs += len(due[agent])
        return due

    def _due_times(self, agent: str, now: float) -> list[float]:
        schedule, last = self._schedules[agent], self._handled_until.get(agent)
        if schedule.outcomes is not None:
            return [now]
        if last is None:
            return [] if schedule.catch_up == "none" else [now]
        return missed(schedule, last, now, schedule.catch_up if agent in self._missed else "latest")

    def _apply_overlap(self, due: dict[str, list[float]]) -> None:
        """Drop due times, or cancel runs, of agents that have unfinished runs."""
        unfinished: defaultdict[str, list[Run]] = defaultdict(list)
        if agents := [agent for agent, times in due.items() if times]:
            for run in self._store.unfinished(*agents):
                unfinished[run.agent].append(run)
        for agent, runs in unfinished.items():
            schedule = self._schedules[agent]
            caught_up = agent in self._missed and schedule.catch_up == "all"
            overlap = "queue" if caught_up else schedule.overlap
            if overlap == "skip" or len(runs) >= MAX_CATCH_UP_RUNS:
                due[agent] = []
                if self._skipped_for.get(agent) != runs[0].id:
                    log.info("schedule_skipped", agent=agent, unfinished_run=runs[0].id)
                self._skipped_for[agent] = runs[0].id
            elif overlap == "replace":
                for run in runs:
                    self._store.request_cancel(
                        run.id, actor="schedule", reason="replaced by a newer run"
                    )


def _timestamp(schedule: Schedule, seconds: float | None) -> str:
    if schedule.outcomes is not None:
        return f"at {schedule.outcomes} outcomes"
    if seconds is None:
        return "never"
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%SZ}"
