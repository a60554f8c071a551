"""What changes. Every method is one transaction; terminal states absorb in its WHERE."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

from sqlalchemy import Connection, Engine, Update, func, insert, select, update

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import TRANSITIONS, Ending, Run, RunState, RunSummary, RunTransition
from genesis_fp16.settings import Settings
from genesis_fp16.store import schema
from genesis_fp16.store.audit_trail import Change, write_audit
from genesis_fp16.store.compared_runs import ComparedRuns
from genesis_fp16.store.database import (
    BUSY_TIMEOUT_MILLISECONDS,
    check_not_lost,
    database_url,
    open_database,
)
from genesis_fp16.store.file_identity import OpenedFile
from genesis_fp16.store.guard_decisions import GuardDecisions
from genesis_fp16.store.new_runs import insert_run, insert_twin
from genesis_fp16.store.overrides import Overrides
from genesis_fp16.store.run_history import UNFINISHED, RunHistory


class Store(RunHistory):
    """The database of one home. Safe to use from several processes at once.

    Args:
        engine: A migrated database, see `open_database`.
        clock: Unix time in seconds.

    Attributes:
        overrides: Operators' words on precision, see `Overrides`.
        guard: The guard's decisions, see `GuardDecisions`.
        compared: What runs in half precision and in FP32 had to show, see `ComparedRuns`.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        super().__init__(engine)
        self._file = OpenedFile(engine.url)
        self._clock = clock
        self.overrides = Overrides(engine, clock)
        self.guard = GuardDecisions(engine, clock)
        self.compared = ComparedRuns(engine, self._as_runs)

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        *,
        busy_milliseconds: int = BUSY_TIMEOUT_MILLISECONDS,
    ) -> Store:
        """Open the database that *settings* name, create or migrate it where needed.

        Args:
            settings: Name the database.
            clock: Unix time in seconds.
            busy_milliseconds: How long a change waits for SQLite's write lock.

        Raises:
            StoreError: It cannot be used, or is gone; the message says what to do.
        """
        check_not_lost(settings)
        return cls(open_database(database_url(settings), busy_milliseconds), clock)

    def now(self) -> float:
        """Unix time in seconds, by the store's clock."""
        return self._clock()

    def verify(self) -> None:
        """Make sure that whoever opens the database anew finds the one that is open here.

        Raises:
            StoreError: Its file was moved, removed or replaced.
        """
        self._file.verify()

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # Schedule

    def record_due(
        self, agent: str, last_due: float, due: Sequence[float], *, first_seed: int
    ) -> list[Run]:
        """Queue a run for each of the *due* times and remember *last_due*: both or neither."""
        table = schema.schedule_state
        with self._engine.begin() as connection:
            moved = connection.execute(
                update(table).where(table.c.agent == agent).values(last_due=last_due)
            )
            if moved.rowcount == 0:
                connection.execute(insert(table).values(agent=agent, last_due=last_due))
            now = self._clock()
            return [
                insert_run(
                    connection, agent, "schedule", now=now, due_at=due_at, first_seed=first_seed
                )
                for due_at in due
            ]

    # Runs

    def enqueue(self, agent: str, *, first_seed: int, trigger: str = "manual") -> Run:
        """Queue a run of *agent* that is due now."""
        now = self._clock()
        with self._engine.begin() as connection:
            return insert_run(
                connection, agent, trigger, now=now, due_at=now, first_seed=first_seed
            )

    def enqueue_baseline(self, run: Run) -> Run:
        """Queue the FP32 twin of *run*, due now: the same seed, to be compared with it."""
        with self._engine.begin() as connection:
            return insert_twin(connection, run, now=self._clock())

    def move(self, run_id: str, state: RunState, *, error: str | None = None) -> bool:
        """Put the run into *state* if it may go there from where it is; whether it did."""
        with self._engine.begin() as connection:
            changes = {} if error is None else {"error": error}
            return self._move(connection, run_id, state, **changes)

    def _move(
        self, connection: Connection, run_id: str, state: RunState, **changes: object
    ) -> bool:
        sources = [source.value for source, targets in TRANSITIONS.items() if state in targets]
        if not TRANSITIONS[state]:
            changes["finished_at"] = self._clock()
        moved = connection.execute(
            update(schema.runs)
            .where(schema.runs.c.id == run_id, schema.runs.c.state.in_(sources))
            .values(state=state.value, **changes)
        )
        return moved.rowcount == 1

    def update_summary(self, run_id: str, summary: RunSummary) -> None:
        """Record what the run has to show so far; *summary* replaces the earlier one."""
        with self._engine.begin() as connection:
            connection.execute(
                update(schema.runs).where(schema.runs.c.id == run_id).values(asdict(summary))
            )

    def record_folder_removed(self, run_id: str, why: str) -> None:
        """Remember that the run's folder is gone and *why*; what was said first stays."""
        with self._engine.begin() as connection:
            connection.execute(
                update(schema.runs)
                .where(schema.runs.c.id == run_id, schema.runs.c.folder_removed.is_(None))
                .values(folder_removed=why)
            )

    def request_cancel(self, run_id: str, *, actor: str, reason: str) -> bool:
        """Ask the daemon to cancel the run; False if it is finished or unknown."""
        with self._engine.begin() as connection:
            asked = connection.execute(
                update(schema.runs)
                .where(
                    schema.runs.c.id == run_id,
                    schema.runs.c.state.in_(UNFINISHED),
                )
                .values(cancel_requested=True)
            )
            if asked.rowcount:
                write_audit(connection, self._clock(), Change(actor, "cancel", run_id, reason))
            return asked.rowcount == 1

    # Attempts

    def begin_attempt(self, run_id: str, incarnation: str) -> Attempt | None:
        """Take the queued run into ``starting`` with a new attempt; None if it is not queued.

        Raises:
            IntegrityError: Another run of the agent is active.
        """
        now = self._clock()
        with self._engine.begin() as connection:
            first = func.coalesce(schema.runs.c.started_at, now)
            if not self._move(connection, run_id, RunState.STARTING, started_at=first):
                return None
            last = connection.scalar(
                select(func.max(schema.attempts.c.number)).where(schema.attempts.c.run_id == run_id)
            )
            attempt = Attempt(
                run_id=run_id, number=(last or 0) + 1, incarnation=incarnation, started_at=now
            )
            connection.execute(insert(schema.attempts).values(asdict(attempt)))
            return attempt

    def update_attempt(self, incarnation: str, **columns: float) -> None:
        """Record ``pid`` and ``pid_started_at``, or ``events_offset``, of an attempt."""
        with self._engine.begin() as connection:
            connection.execute(_of(incarnation).values(columns))

    def end_attempt(
        self, attempt: Attempt, ending: Ending, transition: RunTransition, *, finished_at: float
    ) -> bool:
        """Close the attempt and move its run where *transition* says; False if it was closed.

        Args:
            attempt: The one that ended.
            ending: How.
            transition: What becomes of the run.
            finished_at: Unix time in seconds.
        """
        with self._engine.begin() as connection:
            closed = connection.execute(
                _of(attempt.incarnation)
                .where(schema.attempts.c.finished_at.is_(None))
                .values(
                    finished_at=finished_at,
                    exit_code=ending.exit_code,
                    signal=ending.signal,
                    ending=str(ending),
                )
            )
            if closed.rowcount == 0:
                return False
            runs = schema.runs.c
            seconds = max(0.0, finished_at - attempt.started_at)
            return self._move(
                connection,
                attempt.run_id,
                transition.state,
                available_at=self._clock() + transition.delay_seconds,
                active_seconds=runs.active_seconds + seconds,
                failures=runs.failures + int(transition.failed),
            )


def _of(incarnation: str) -> Update:
    return update(schema.attempts).where(schema.attempts.c.incarnation == incarnation)
