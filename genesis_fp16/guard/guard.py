"""The guard in the daemon: observes every event, decides at once, records it when it can."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.domain import guard as rules
from genesis_fp16.domain.attempt import Attempt, events_path
from genesis_fp16.domain.event_limits import EventLimits
from genesis_fp16.domain.guard import GUARD, Decision, Detection, GuardState
from genesis_fp16.domain.run import RunState
from genesis_fp16.guard.detectors import AgentObserver, detect_metric_drift, scaling_of
from genesis_fp16.guard.evidence import relevant_settings, unrecorded_decisions, write_evidence
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail
from infrastructure.events.event import NOT_RAISED, Notice, RungSearched, StepStats
from infrastructure.events.precision_state import describe_roles

REPLAYED_BYTES = 1 << 18  # at a start, of the events of each attempt of an unfinished run
REPLAY_SECONDS = 1.0  # for all of them

_RELAPSED = "this did not suffice before: the whole job stays in FP32"
_FORBIDDEN = "GENESIS_GUARD_LADDER is false, for this agent or all: the whole job stays in FP32"
_SCALE = "the loss scale"  # the rung of a fault that it cures by itself

log = structlog.get_logger()

_LOG_EVENTS = {
    GuardState.TRIPPED: "guard_tripped",
    GuardState.PROBATION: "guard_probation_started",
    GuardState.WATCHING: "guard_probation_ended",
}


@dataclass(slots=True)
class _GuardedAgent:
    decision: Decision  # in force
    observer: AgentObserver = field(default_factory=AgentObserver)
    last_started: str = ""  # the run
    scale_told: tuple[str, ...] = ()  # the run, and what was left to its loss scale
    relapsed: set[tuple[str, ...]] = field(default_factory=set)  # rungs that did not suffice

    def follow(self, decision: Decision) -> None:
        """Put *decision* in force."""
        if decision.actor != GUARD:
            self.relapsed.clear()  # an operator permits another try
        is_relapse = decision.demands_fp32 and decision.level > self.decision.level
        if is_relapse and (rung := _rung(self.decision)):
            self.relapsed.add(rung)
        self.decision = decision


def _rung(decision: Decision) -> tuple[str, ...]:
    """What *decision* changes: modules, or parts or roles with their precisions; or that the loss
    scale moves by itself. Empty if it is not a rung of the guard.
    """
    if decision.state is GuardState.PROBATION and decision.actor == GUARD:
        return (_SCALE,)
    changed = decision.parts or decision.roles
    return (*decision.modules, *(f"{changes} {name}" for changes, name in changed.items()))


class Guard:
    """Takes agents to FP32 by itself, and lets them back; an `EventListener` of the dispatcher.

    If the rounding of a single role is to blame, only that role's precision changes. After a trip
    FP32 remains in some modules only, or gives way to the other half type, once a search by the
    worker has shown that this suffices.

    A decision is in force when it is made: a full disk or a locked store does not delay it.
    `refresh` records what was decided and reads what operators have decided.

    Args:
        store: Store of the decisions; those of earlier daemons stay in force.
        on_decision: Called with each new decision, including an operator's.
        clock: Unix time in seconds.

    Attributes:
        settings: Settings in force; assign it after a reload.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        on_decision: Callable[[Decision], None] = lambda _decision: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._store, self._on_decision, self._clock = store, on_decision, clock
        self._agents: dict[str, _GuardedAgent] = {}
        self._without_evidence: deque[tuple[Decision, dict[str, object]]] = deque()
        self._unrecorded: deque[Decision] = deque()
        self._to_compare: list[str] = []
        self._last_entry, decisions = store.guard.since(0)
        for decision in decisions:
            self._agent(decision.agent).follow(decision)
        self._recover_decisions({decision.evidence for decision in decisions})
        self._replay_events()

    def decision(self, agent: str) -> Decision:
        """The decision in force for *agent*."""
        return self._agent(agent).decision

    def in_force(self, agent: str) -> Decision:
        """The decision for *agent* as the settings allow it now."""
        return self.settings.guard_decision(self.decision(agent))

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Observe an event; trip if it shows too much against half precision."""
        detection = self._observe(self._agent(agent), run_id, event)
        if detection is not None:
            self.trip(agent, detection)
        elif isinstance(event, RungSearched):
            self._descend(agent, run_id, event)
        elif isinstance(event, Notice) and event.event == NOT_RAISED:
            self._climb(agent, run_id, event)
        elif isinstance(event, StepStats):
            self._step_down(agent, run_id)
            self._tell_left_to_scale(agent, run_id)

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Start a probation with a run, or end it with one."""
        guarded, now = self._agent(agent), self._clock()
        decided = None
        if state == RunState.STARTING and guarded.last_started != run_id:
            guarded.last_started = run_id
            decided = rules.start_probation(guarded.decision, self.settings, now=now, run_id=run_id)
        elif state == RunState.SUCCEEDED:
            self._to_compare.append(agent)
            steps = guarded.observer.half_steps
            decided = rules.end_probation(
                guarded.decision, self.settings, now=now, run_id=run_id, half_steps=steps
            )
        if decided is not None:
            self._decide(guarded, decided, {})

    def refresh(self) -> None:
        """Record what was decided and read operators' decisions; call again if the store fails."""
        self._write_evidence()
        while self._to_compare:
            self._compare(self._to_compare[-1])
            self._to_compare.pop()
        self._write_evidence()
        while self._unrecorded:
            self._store.guard.add(self._unrecorded[0])
            self._unrecorded.popleft()
        self._last_entry, decisions = self._store.guard.since(self._last_entry)
        for decision in decisions:
            if decision.actor != GUARD:
                self._put_in_force(self._agent(decision.agent), decision)

    def trip(self, agent: str, detection: Detection) -> None:
        """Demand what *detection* asks for from now on, unless FP32 is in force already."""
        guarded = self._agent(agent)
        run_id, step = guarded.observer.run_id, guarded.observer.step
        tripped = rules.trip(
            guarded.decision,
            detection,
            self.settings,
            now=self._clock(),
            run_id=run_id,
            step=step,
        )
        if tripped is not None:
            self._decide(guarded, tripped, {"numbers": detection.numbers})

    def _descend(self, agent: str, run_id: str, found: RungSearched) -> None:
        """Go down to the rung that a search has found, unless that has failed before."""
        guarded = self._agent(agent)
        if not self.settings.search_seconds_of(agent):
            log.warning("guard_rung_refused", agent=agent, rung="any", reason=_FORBIDDEN)
            return
        decided = rules.descend(
            guarded.decision, found, self.settings, now=self._clock(), run_id=run_id
        )
        if decided is None:
            return
        rung = _rung(decided)
        if rung in guarded.relapsed:
            log.warning("guard_rung_refused", agent=agent, rung=", ".join(rung), reason=_RELAPSED)
            refused = rules.refuse(
                guarded.decision, rung, why=_RELAPSED, now=self._clock(), run_id=run_id
            )
            if refused is not None:
                self._decide(guarded, refused, {"search": found.model_dump(mode="json")})
            return
        self._decide(guarded, decided, {"search": found.model_dump(mode="json")})

    def _climb(self, agent: str, run_id: str, notice: Notice) -> None:
        """Demand FP32 in all where a worker says that the raised modules are not in its job."""
        guarded, said = self._agent(agent), notice.fields
        names, why = said.get("modules", ""), said.get("error", "")
        decided = rules.climb(guarded.decision, names, why=why, now=self._clock(), run_id=run_id)
        if decided is not None:
            self._decide(guarded, decided, {})

    def _step_down(self, agent: str, run_id: str) -> None:
        """After a quiet time on a rung, try half precision everywhere."""
        guarded = self._agent(agent)
        decided = rules.step_down(
            guarded.decision,
            self.settings,
            now=self._clock(),
            run_id=run_id,
            step=guarded.observer.step,
            half_steps=guarded.observer.half_steps,
        )
        if decided is not None:
            self._decide(guarded, decided, {})

    def _tell_left_to_scale(self, agent: str, run_id: str) -> None:
        """Log once in a run, for each kind, what the guard leaves to the loss scale."""
        guarded = self._agent(agent)
        left = {name: n for name, n in guarded.observer.left_to_scale.items() if n}
        told = (run_id, *left)
        if left and told != guarded.scale_told:
            guarded.scale_told = told
            why = "the loss scale falls, or grows, by itself"
            log.info("guard_left_to_scale", agent=agent, run_id=run_id, reason=why, **left)

    def _compare(self, agent: str) -> None:
        """Compare held-out metrics of runs and their FP32 repetitions since the last decision."""
        pairs = self._store.compared.pairs(agent, since=self.decision(agent).at)
        detection = detect_metric_drift(pairs, self.settings)
        if detection is not None:
            self.trip(agent, detection)

    def _recover_decisions(self, recorded: set[str]) -> None:
        """Put decisions in force that an earlier daemon wrote to the disk but not to the store."""
        for decision in unrecorded_decisions(self.settings.home.absolute(), recorded):
            guarded = self._agent(decision.agent)
            if decision.at > guarded.decision.at:
                self._unrecorded.append(decision)
                guarded.decision = decision
                log.warning(
                    "guard_decision_recovered",
                    agent=decision.agent,
                    state=decision.state,
                    evidence=decision.evidence,
                )

    def _replay_events(self) -> None:
        """Observe again what an earlier daemon observed of unfinished runs, without deciding."""
        deadline, unread = time.monotonic() + REPLAY_SECONDS, 0
        for run in self._store.unfinished():
            for attempt in self._store.attempts(run.id):
                self._agent(run.agent).last_started = run.id
                if time.monotonic() >= deadline:
                    unread += 1
                    continue
                with suppress(OSError):  # the dispatcher reports a file that cannot be read
                    self._replay(run.agent, attempt, deadline)
        if unread:
            consequence = "their overflows and comparisons before this start do not count"
            log.warning("guard_replay_incomplete", attempts=unread, consequence=consequence)

    def _replay(self, agent: str, attempt: Attempt, deadline: float) -> None:
        """Observe the last events before the place where the dispatcher goes on."""
        guarded, limits = self._agent(agent), EventLimits()
        age = self._clock() - attempt.started_at
        path = events_path(self.settings.home, attempt)
        end = attempt.events_offset
        tail = EventTail(path, max(0, end - REPLAYED_BYTES), end=end)
        for event in tail.read(deadline):
            admitted = limits.admit(event, age)
            if admitted is not None and admitted.time > guarded.decision.at:
                self._observe(guarded, attempt.run_id, admitted)

    def _observe(self, guarded: _GuardedAgent, run_id: str, event: Event) -> Detection | None:
        return guarded.observer.observe(
            run_id,
            event,
            self.settings,
            on_probation=guarded.decision.state is GuardState.PROBATION,
            scaling=scaling_of(self.settings),
        )

    def _agent(self, name: str) -> _GuardedAgent:
        if name not in self._agents:
            self._agents[name] = _GuardedAgent(Decision(agent=name))
        return self._agents[name]

    def _decide(
        self, guarded: _GuardedAgent, decision: Decision, numbers: dict[str, object]
    ) -> None:
        settings = relevant_settings(self.settings, decision.agent)
        evidence = {**numbers, **guarded.observer.evidence(), "settings": settings}
        self._without_evidence.append((decision, evidence))
        self._put_in_force(guarded, decision)

    def _put_in_force(self, guarded: _GuardedAgent, decision: Decision) -> None:
        guarded.follow(decision)
        guarded.observer.reset()
        write_log = log.warning if decision.state is GuardState.TRIPPED else log.info
        write_log(
            "guard_descended" if decision.descended else _LOG_EVENTS[decision.state],
            agent=decision.agent,
            trigger=decision.trigger,
            run_id=decision.run_id or None,
            actor=decision.actor,
            reason=decision.reason,
            **({"roles": describe_roles(decision.roles)} if decision.roles else {}),
            **({"modules": ", ".join(decision.modules)} if decision.modules else {}),
            **({"parts": dict(decision.parts)} if decision.parts else {}),
        )
        self._on_decision(decision)

    def _write_evidence(self) -> None:
        """Write the bundles before using the store: they outlive a daemon whose store fails."""
        while self._without_evidence:
            self._unrecorded.append(self._with_evidence(*self._without_evidence[0]))
            self._without_evidence.popleft()

    def _with_evidence(self, decision: Decision, evidence: dict[str, object]) -> Decision:
        try:
            attempts = self._store.attempts(decision.run_id) if decision.run_id else []
        except SQLAlchemyError:  # the number of the attempt is missing then, and the rest is safe
            attempts = []
        attempt = attempts[-1].number if attempts else None
        try:
            home = self.settings.home.absolute()
            return write_evidence(home, decision, {"attempt": attempt, **evidence})
        except OSError as error:
            log.error("evidence_not_written", agent=decision.agent, error=str(error))
            return decision
