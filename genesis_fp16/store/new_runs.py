"""Runs as they come into the database: numbered, seeded, due, queued."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from datetime import UTC, datetime

from sqlalchemy import Connection, func, insert, select

from genesis_fp16.domain.run import Run, RunState
from genesis_fp16.store import schema

MAX_SEED = 2**63


def insert_run(
    connection: Connection, agent: str, trigger: str, *, now: float, due_at: float, first_seed: int
) -> Run:
    """Queue a run of *agent*.

    Args:
        connection: In a transaction that writes.
        agent: Whose run.
        trigger: ``schedule`` or ``manual``.
        now: Unix time in seconds.
        due_at: The same, of the time it was due.
        first_seed: Seed of the agent's first run; each later one counts on by one.
    """
    earlier = connection.scalar(
        select(func.count())
        .select_from(schema.runs)
        .where(schema.runs.c.agent == agent, schema.runs.c.baseline_of.is_(None))
    )
    run = Run(
        id=_new_id(now),
        agent=agent,
        number=(earlier or 0) + 1,
        trigger=trigger,
        state=RunState.QUEUED,
        seed=(first_seed + (earlier or 0)) % MAX_SEED,
        due_at=due_at,
        created_at=now,
        available_at=now,
    )
    _insert(connection, run)
    return run


def insert_twin(connection: Connection, run: Run, *, now: float) -> Run:
    """Queue the FP32 twin of *run*, due *now* in Unix seconds: the same number, the same seed."""
    twin = Run(
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
    _insert(connection, twin)
    return twin


def _insert(connection: Connection, run: Run) -> None:
    connection.execute(insert(schema.runs).values({**asdict(run), "state": run.state.value}))


def _new_id(now: float) -> str:
    return f"{datetime.fromtimestamp(now, UTC):%Y%m%dT%H%M%S}-{secrets.token_hex(4)}"
