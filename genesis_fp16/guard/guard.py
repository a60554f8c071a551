"""The guard in the daemon: hears every event, decides at once, writes it down when it can."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog
from sqlalchemy.exc import SQLAlchemyError

from genesis_fp16.domain import guard as ladder
from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.guard import GUARD, Decision, Finding, GuardState
from genesis_fp16.domain.run import RunState
from genesis_fp16.guard.evidence import settings_in_force, unrecorded, write_evidence
from genesis_fp16.guard.metric_pairs import judge
from genesis_fp16.guard.overflow_windows import Scaling
from genesis_fp16.guard.watch import Watch
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail
from infrastructure.events.event_log import MAX_READ_BYTES

log = structlog.get_logger()


@dataclass(slots=True)
class _Charge:
    """One agent in the guard's charge."""

    standing: Decision
    watch: Watch = field(default_factory=Watch)
    begun: str = ""  # the run that began last


class Guard:
    """Takes agents to FP32 by itself, and lets them back; an `EventListener` of the dispatcher.

    A decision is in force when it is made: neither a full disk nor a locked store holds it up.
    `refresh` writes down what was decided and hears what operators have.

    Args:
        store: Keeps the decisions; those of earlier daemons stand.
        settings: In force; assign `settings` anew after a reload.
        told: Called with each new decision, an operator's too.
        clock: Unix time in seconds.

    Attributes:
        settings: In force.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        told: Callable[[Decision], None] = lambda _decision: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._store, self._told, self._clock = store, told, clock
        self._charges: dict[str, _Charge] = {}
        self._without_evidence: deque[tuple[Decision, dict[str, object]]] = deque()
        self._unwritten: deque[Decision] = deque()
        self._to_compare: list[str] = []
        self._entry, decisions = store.guard.since(0)
        for decision in decisions:
            self._charge(decision.agent).standing = decision
        self._take_over({decision.evidence for decision in decisions})
        self._catch_up()

    def standing(self, agent: str) -> Decision:
        """What stands for *agent*."""
        return self._charge(agent).standing

    def demands_fp32(self, agent: str) -> bool:
        """Whether the guard speaks for FP32 now."""
        tripped = self._charge(agent).standing.state is GuardState.TRIPPED
        return tripped and self.settings.guard_enabled

    def on_event(self, agent: str, run_id: str, event: Event) -> None:
        """Look at what a worker said."""
        found = self._hear(self._charge(agent), run_id, event)
        if found is not None:
            self.trip(agent, found)

    def on_run_state(self, agent: str, run_id: str, state: RunState) -> None:
        """Begin a probation with a run, or end it with one."""
        charge, now = self._charge(agent), self._clock()
        decided = None
        if state == RunState.STARTING and charge.begun != run_id:
            charge.begun = run_id
            decided = ladder.try_again(charge.standing, self.settings, now=now, run_id=run_id)
        elif state == RunState.SUCCEEDED:
            self._to_compare.append(agent)
            steps = charge.watch.half_steps
            decided = ladder.prove(
                charge.standing, self.settings, now=now, run_id=run_id, half_steps=steps
            )
        if decided is not None:
            self._decide(charge, decided, {})

    def refresh(self) -> None:
        """Write down what was decided, and hear operators; a failing store is tried again."""
        self._write_evidence()
        while self._to_compare:
            self._compare(self._to_compare[-1])
            self._to_compare.pop()
        self._write_evidence()
        while self._unwritten:
            self._store.guard.add(self._unwritten[0])
            self._unwritten.popleft()
        self._entry, decisions = self._store.guard.since(self._entry)
        for decision in decisions:
            if decision.actor != GUARD:
                self._stand(self._charge(decision.agent), decision)

    def trip(self, agent: str, found: Finding) -> None:
        """Demand FP32 for *agent* from now on, unless that is in force already."""
        charge = self._charge(agent)
        run_id, step = charge.watch.run_id, charge.watch.step
        tripped = ladder.trip(
            charge.standing, found, self.settings, now=self._clock(), run_id=run_id, step=step
        )
        if tripped is not None:
            self._decide(charge, tripped, {"numbers": found.numbers})

    def _compare(self, agent: str) -> None:
        """Look at the held-out metrics of runs and their FP32 twins since the last decision."""
        pairs = self._store.compared.pairs(agent, since=self._charge(agent).standing.at)
        found = judge(pairs, self.settings)
        if found is not None:
            self.trip(agent, found)

    def _take_over(self, recorded: set[str]) -> None:
        """Let decisions stand that an earlier daemon could write to the disk, not to the store."""
        for decision in unrecorded(self.settings.home.absolute(), recorded):
            charge = self._charge(decision.agent)
            if decision.at > charge.standing.at:
                self._unwritten.append(decision)
                charge.standing = decision
                log.warning(
                    "guard_decision_recovered",
                    agent=decision.agent,
                    state=decision.state,
                    evidence=decision.evidence,
                )

    def _catch_up(self) -> None:
        """Hear again what an earlier daemon heard of the runs under way; it has judged it."""
        for run in self._store.unfinished():
            charge = self._charge(run.agent)
            for attempt in self._store.attempts(run.id):
                charge.begun = run.id
                path = attempt_folder(self.settings.home, attempt) / "events.ndjson"
                tail = EventTail(path, max(0, attempt.events_offset - MAX_READ_BYTES))
                for event in tail.read():
                    if tail.offset > attempt.events_offset:
                        break  # the dispatcher passes on this one
                    if event.time > charge.standing.at:
                        self._hear(charge, run.id, event)

    def _hear(self, charge: _Charge, run_id: str, event: Event) -> Finding | None:
        return charge.watch.take(
            run_id,
            event,
            self.settings,
            strict=charge.standing.state is GuardState.PROBATION,
            scaling=Scaling(
                backoff_factor=self.settings.fp16_backoff_factor,
                floor=self.settings.fp16_min_loss_scale,
            ),
        )

    def _charge(self, agent: str) -> _Charge:
        if agent not in self._charges:
            self._charges[agent] = _Charge(Decision(agent=agent))
        return self._charges[agent]

    def _decide(self, charge: _Charge, decision: Decision, numbers: dict[str, object]) -> None:
        settings = settings_in_force(self.settings, decision.agent)
        seen = {**numbers, **charge.watch.seen(), "settings": settings}
        self._without_evidence.append((decision, seen))
        self._stand(charge, decision)

    def _stand(self, charge: _Charge, decision: Decision) -> None:
        charge.standing = decision
        charge.watch.forget()
        tell = log.warning if decision.state is GuardState.TRIPPED else log.info
        tell(
            f"guard_{decision.state}",
            agent=decision.agent,
            trigger=decision.trigger,
            run_id=decision.run_id or None,
            actor=decision.actor,
            said=decision.reason,
        )
        self._told(decision)

    def _write_evidence(self) -> None:
        """Needs the disk only: it is what outlives a daemon that ends while its store fails."""
        while self._without_evidence:
            self._unwritten.append(self._with_evidence(*self._without_evidence[0]))
            self._without_evidence.popleft()

    def _with_evidence(self, decision: Decision, seen: dict[str, object]) -> Decision:
        try:
            attempts = self._store.attempts(decision.run_id) if decision.run_id else []
        except SQLAlchemyError:  # known later perhaps, but the rest is safe now
            attempts = []
        attempt = attempts[-1].number if attempts else None
        try:
            home = self.settings.home.absolute()
            return write_evidence(home, decision, {"attempt": attempt, **seen})
        except OSError as error:
            log.error("evidence_not_kept", agent=decision.agent, error=str(error))
            return decision
