"""The store of runs and attempts. Every change is one transaction; a finished run stays finished.

A row that cannot be read, because another program wrote it, is left out and logged.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, TypeVar

from sqlalchemy import (
    Connection,
    Engine,
    Select,
    Text,
    Update,
    bindparam,
    cast,
    func,
    insert,
    select,
    tuple_,
    update,
)

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.run import (
    TERMINAL,
    TRANSITIONS,
    Ending,
    Run,
    RunState,
    RunSummary,
    RunTransition,
)
from genesis_fp16.domain.schedule import DueTime
from genesis_fp16.settings import Settings
from genesis_fp16.store import schema
from genesis_fp16.store.compared_runs import ComparedRuns
from genesis_fp16.store.database import (
    BUSY_TIMEOUT_MILLISECONDS,
    changed_at_ns,
    check_is_database,
    check_not_lost,
    database_url,
    file_identity,
    open_database,
    read_connection,
)
from genesis_fp16.store.decisions import Change, GuardDecisions, Overrides, write_audit
from genesis_fp16.store.errors import StoreError
from genesis_fp16.store.pauses import Pauses
from genesis_fp16.store.rows import RowReader, is_number
from genesis_fp16.store.timeline import Timeline
from genesis_fp16.store.training_times import TrainingTimes
from genesis_fp16.store.unfinished_runs import UNFINISHED, UnfinishedRuns, in_order

MAX_SEED = 2**63
_Row = TypeVar("_Row", Run, Attempt, DueTime)


class Store:
    """The database of one home. Safe to use from several processes at once.

    Args:
        engine: Engine of a migrated database, see `open_database`.
        clock: Unix time in seconds.

    Attributes:
        overrides: Operators' overrides of precision.
        guard: The guard's decisions.
        pauses: Agents that start no runs.
        timeline: Runs and rollbacks of all agents in a span of time.
        times: How long and how recently agents have trained.
        compared: Results of runs in half precision and in FP32.
        unfinished_runs: What `unfinished` returns, for a loop.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.time) -> None:
        self._engine, self._clock = engine, clock
        self._path = engine.url.database if engine.dialect.name == "sqlite" else None
        self._identity = file_identity(self._path) if self._path else None
        self._checked: int | None = None  # last change of the file that `verify` has looked at
        self._as_runs = RowReader(schema.runs, Run, "the run is ignored, as if unknown")
        self._as_attempts = RowReader(
            schema.attempts, Attempt, "the attempt is ignored, as if unknown"
        )
        self._as_due_times = RowReader(
            schema.schedule_state, DueTime, "the agent counts as one that was never due"
        )
        self.overrides = Overrides(engine, clock)
        self.guard = GuardDecisions(engine, clock)
        self.pauses = Pauses(engine, clock)
        self.timeline = Timeline(engine)
        self.times = TrainingTimes(engine, clock)
        self.compared = ComparedRuns(engine, self._as_runs)
        self.unfinished_runs = UnfinishedRuns(engine, self._as_runs)

    @classmethod
    def open(
        cls,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        *,
        busy_milliseconds: int = BUSY_TIMEOUT_MILLISECONDS,
    ) -> Store:
        """Open the database of *settings*; create or migrate it if needed.

        A change waits *busy_milliseconds* for SQLite's write lock.

        Raises:
            StoreError: The database cannot be used or is missing; the message has the remedy.
        """
        check_not_lost(settings)
        return cls(open_database(database_url(settings), busy_milliseconds), clock)

    def now(self) -> float:
        """Unix time in seconds, by the store's clock."""
        return self._clock()

    def verify(self) -> None:
        """Check that commands that open the database find the one that is open here.

        Raises:
            StoreError: Its file was moved, removed, replaced or overwritten.
        """
        if self._path and file_identity(self._path) != self._identity:
            raise StoreError(
                f"database {self._path} was moved, removed or replaced while it was open: this "
                "daemon does not see what commands change now, such as a rollback; move it back, "
                "or restart"
            )
        if self._path and (changed_at := changed_at_ns(self._path)) != self._checked:
            check_is_database(self._engine.url)
            self._checked = changed_at

    def record_change(self, change: Change) -> None:
        """Append *change*, which is made outside of the database, to the audit trail."""
        with self._engine.begin() as connection:
            write_audit(connection, self._clock(), change)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    # Schedule

    def last_due(self, *agents: str) -> dict[str, float]:
        """The last due time that was handled of each of *agents*, without those never due."""
        table = schema.schedule_state
        due_times = self._read(self._as_due_times, select(table).where(table.c.agent.in_(agents)))
        return {due_time.agent: due_time.last_due for due_time in due_times}

    def record_due(
        self, due_times: Mapping[DueTime, Sequence[float]], *, first_seed: int
    ) -> list[Run]:
        """Queue the runs of several agents and remember their last due times: all or nothing.

        Args:
            due_times: Last due time of an agent, to the due times that become runs.
            first_seed: Seed of an agent's first run.
        """
        table, now = schema.schedule_state, self._clock()
        rows = [{"of": due_time.agent, **asdict(due_time)} for due_time in due_times]
        agents = [due_time.agent for due_time in due_times]
        with self._engine.begin() as connection:
            known = set(connection.scalars(select(table.c.agent).where(table.c.agent.in_(agents))))
            if earlier := [row for row in rows if row["agent"] in known]:
                connection.execute(
                    update(table)
                    .where(table.c.agent == bindparam("of"))
                    .values(last_due=bindparam("last_due")),
                    earlier,
                )
            if new := [asdict(due_time) for due_time in due_times if due_time.agent not in known]:
                connection.execute(insert(table), new)
            return _insert_runs(
                connection,
                {due_time.agent: due for due_time, due in due_times.items()},
                "schedule",
                now=now,
                first_seed=first_seed,
            )

    # Runs

    def run(self, run_id: str) -> Run | None:
        """The run with this id, or None."""
        runs = self._read(self._as_runs, select(schema.runs).where(schema.runs.c.id == run_id))
        return runs[0] if runs else None

    def numbered_runs(self, number: int, agent: str | None = None) -> list[Run]:
        """The runs with this number, one for each agent that has it; or the one of *agent*."""
        columns = schema.runs.c
        query = select(schema.runs).where(columns.number == number).order_by(columns.agent)
        return self._read(
            self._as_runs, query if agent is None else query.where(columns.agent == agent)
        )

    def runs(
        self,
        agent: str | None = None,
        limit: int = 50,
        *,
        states: Collection[RunState] = (),
        before: Run | None = None,
    ) -> list[Run]:
        """The newest runs, newest first.

        Args:
            agent: Only runs of it.
            limit: Most runs to return.
            states: Only runs in one of these states; by default in any.
            before: Only runs that follow this one in the list.
        """
        columns = schema.runs.c
        query = select(schema.runs).order_by(columns.created_at.desc(), columns.id.desc())
        if agent is not None:
            query = query.where(columns.agent == agent)
        if states:
            query = query.where(columns.state.in_([state.value for state in states]))
        if before is not None:
            position = tuple_(columns.created_at, columns.id)
            query = query.where(position < (before.created_at, before.id))
        return self._read(self._as_runs, query.limit(limit))

    def ended_since(self, since: float) -> dict[str, float]:
        """Id and end of each run that ended at the Unix time *since* or later, in this order."""
        columns = schema.runs.c
        query = select(columns.id, columns.finished_at).where(
            is_number(columns.finished_at),
            columns.finished_at >= since,
            columns.state.in_([state.value for state in TERMINAL]),
        )
        with read_connection(self._engine) as connection:
            rows = connection.execute(query.order_by(columns.finished_at, columns.id))
            return {str(run_id): float(at) for run_id, at in rows}

    def newest_states(self) -> dict[str, RunState]:
        """Agent to the state of its newest run; a fraction of the time of `newest_runs`."""
        columns = schema.runs.c
        newest = select(columns.agent, func.max(columns.created_at).label("created_at"))
        latest = newest.group_by(columns.agent).subquery()
        same = (columns.agent == latest.c.agent) & (columns.created_at == latest.c.created_at)
        query = select(columns.agent, columns.state).join(latest, same).order_by(columns.id)
        known = {state.value for state in RunState}
        with read_connection(self._engine) as connection:
            rows = connection.execute(query)
            return {str(agent): RunState(state) for agent, state in rows if state in known}

    def newest_runs(
        self, agents: Collection[str] | None = None, *, acknowledged: bool = False
    ) -> dict[str, Run]:
        """Agent, of *agents* or of all, to its newest run.

        With *acknowledged*, to the newest with a known precision.
        """
        columns = schema.runs.c
        newest = select(columns.agent, func.max(columns.created_at).label("created_at"))
        if agents is not None:
            newest = newest.where(columns.agent.in_(agents))
        if acknowledged:  # a precision that is missing is stored as JSON's null
            newest = newest.where(cast(columns.precision, Text) != "null")
        latest = newest.group_by(columns.agent).subquery()
        same = (columns.agent == latest.c.agent) & (columns.created_at == latest.c.created_at)
        query = select(schema.runs).join(latest, same).order_by(columns.id)
        return {run.agent: run for run in self._read(self._as_runs, query)}

    def last_success(self, agent: str) -> float:
        """End of the agent's last successful run in Unix time; 0 if there is none."""
        query = select(func.max(schema.runs.c.finished_at)).where(
            schema.runs.c.agent == agent,
            schema.runs.c.state == RunState.SUCCEEDED.value,
            is_number(schema.runs.c.finished_at),
        )
        with read_connection(self._engine) as connection:
            return connection.scalar(query) or 0.0

    def unfinished(self, *agents: str) -> list[Run]:
        """Queued and active runs of *agents*, by default of all, the longest due first."""
        query = in_order(select(schema.runs))
        if agents:
            query = query.where(schema.runs.c.agent.in_(agents))
        return self._read(self._as_runs, query)

    def enqueue(
        self, agent: str, *, first_seed: int, actor: str | None = None, reason: str = ""
    ) -> Run:
        """Queue a run of *agent* that is due now; audited if an *actor* is named."""
        now = self._clock()
        with self._engine.begin() as connection:
            [run] = _insert_runs(
                connection, {agent: [now]}, "manual", now=now, first_seed=first_seed
            )
            if actor is not None:
                write_audit(connection, now, Change(actor, "run", agent, reason, {"run": run.id}))
            return run

    def enqueue_baseline(self, run: Run) -> Run:
        """Queue a repetition of *run* in FP32, due now, with the same number and seed."""
        now = self._clock()
        baseline = Run(
            id=_new_id(now),
            agent=run.agent,
            number=run.number,
            trigger="baseline",
            state=RunState.QUEUED,
            seed=run.seed,
            due_at=now,
            created_at=now,
            available_at=now,
            baseline_of=run.id,
        )
        with self._engine.begin() as connection:
            _insert(connection, [baseline])
        return baseline

    def move(self, run_id: str, state: RunState, *, error: str | None = None) -> bool:
        """Move the run to *state* if its state allows it; whether it moved."""
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
        """Record the results of the run so far; *summary* replaces the earlier one."""
        with self._engine.begin() as connection:
            connection.execute(
                update(schema.runs).where(schema.runs.c.id == run_id).values(asdict(summary))
            )

    def save_progress(
        self, attempt: Attempt, summary: RunSummary, **columns: float | str | None
    ) -> None:
        """Record the results of the run so far and *columns* of its attempt: both or neither."""
        of_run = schema.runs.c.id == attempt.run_id
        with self._engine.begin() as connection:
            connection.execute(update(schema.runs).where(of_run).values(asdict(summary)))
            connection.execute(_of(attempt.incarnation).values(columns))

    def record_folder_removed(self, run_id: str, why: str) -> None:
        """Record that the run's folder was removed, and *why*; the first reason stays."""
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
                .where(schema.runs.c.id == run_id, schema.runs.c.state.in_(UNFINISHED))
                .values(cancel_requested=True)
            )
            if asked.rowcount:
                write_audit(connection, self._clock(), Change(actor, "cancel", run_id, reason))
            return asked.rowcount == 1

    def move_in_queue(self, run_id: str, *, first: bool, actor: str, reason: str) -> bool:
        """Let the queued run start before all others, or after them; False if it is not queued."""
        columns = schema.runs.c
        queued = columns.state == RunState.QUEUED.value
        with self._engine.begin() as connection:
            outermost = func.min(columns.position) if first else func.max(columns.position)
            position = connection.scalar(select(outermost).where(queued)) or 0
            moved = connection.execute(
                update(schema.runs)
                .where(columns.id == run_id, queued)
                .values(position=position + (-1 if first else 1))
            )
            if moved.rowcount:
                details = {"to": "first" if first else "last"}
                write_audit(
                    connection, self._clock(), Change(actor, "run move", run_id, reason, details)
                )
            return moved.rowcount == 1

    # Attempts

    def attempts(self, run_id: str) -> list[Attempt]:
        """Attempts of the run, oldest first."""
        query = select(schema.attempts).where(schema.attempts.c.run_id == run_id)
        return self._read(self._as_attempts, query.order_by(schema.attempts.c.number))

    def begin_attempt(self, run_id: str, incarnation: str) -> Attempt | None:
        """Move the queued run to ``starting`` with a new attempt; None if it is not queued.

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

    def update_attempt(self, incarnation: str, **columns: float | str | None) -> None:
        """Record ``pid`` and ``pid_started_at``, ``job`` or ``events_offset`` of an attempt."""
        with self._engine.begin() as connection:
            connection.execute(_of(incarnation).values(columns))

    def end_attempt(
        self,
        attempt: Attempt,
        ending: Ending,
        transition: RunTransition,
        *,
        finished_at: float,
        error: str | None = None,
    ) -> bool:
        """Close the attempt and move its run by *transition*; False if it was closed already.

        The *error* is the attempt's own; that of its run may be replaced by a later one.
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
                    error=error,
                    waiting=None,
                    waited_seconds=attempt.waited_seconds,
                )
            )
            if closed.rowcount == 0:
                return False
            runs = schema.runs.c
            seconds = max(0.0, finished_at - attempt.started_at - attempt.waited_seconds)
            return self._move(
                connection,
                attempt.run_id,
                transition.state,
                available_at=self._clock() + transition.delay_seconds,
                active_seconds=runs.active_seconds + seconds,
                failures=runs.failures + int(transition.failed),
            )

    def _read(self, reader: RowReader[_Row], query: Select[Any]) -> list[_Row]:
        with read_connection(self._engine) as connection:
            return reader(connection.execute(query).mappings())


def _of(incarnation: str) -> Update:
    return update(schema.attempts).where(schema.attempts.c.incarnation == incarnation)


def _insert_runs(
    connection: Connection,
    due_times: Mapping[str, Sequence[float]],
    trigger: str,
    *,
    now: float,
    first_seed: int,
) -> list[Run]:
    """Queue runs of agents; an agent's first has the seed *first_seed*, each later one 1 more."""
    agents = [agent for agent, due in due_times.items() if due]
    counted = (
        select(schema.runs.c.agent, func.count())
        .where(schema.runs.c.agent.in_(agents), schema.runs.c.baseline_of.is_(None))
        .group_by(schema.runs.c.agent)
    )
    earlier = {row[0]: row[1] for row in connection.execute(counted)}
    runs = [
        Run(
            id=_new_id(now),
            agent=agent,
            number=number + 1,
            trigger=trigger,
            state=RunState.QUEUED,
            seed=(first_seed + number) % MAX_SEED,
            due_at=due_at,
            created_at=now,
            available_at=now,
        )
        for agent in agents
        for number, due_at in enumerate(due_times[agent], start=earlier.get(agent, 0))
    ]
    _insert(connection, runs)
    return runs


def _insert(connection: Connection, runs: Sequence[Run]) -> None:
    if runs:
        rows = [{**asdict(run), "state": run.state.value} for run in runs]
        connection.execute(insert(schema.runs), rows)


def _new_id(now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
