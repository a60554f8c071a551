"""The tables. Times are Unix seconds; migrations bring an older database here."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from genesis_fp16.domain.run import ACTIVE, RunState

metadata = MetaData()


def _any_of(column: str, values: frozenset[RunState]) -> str:
    return f"{column} IN ({', '.join(repr(str(value)) for value in sorted(values))})"


schedule_state = Table(
    "schedule_state",
    metadata,
    Column("agent", String(32), primary_key=True),
    Column("last_due", Float, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("agent", String(32), nullable=False),
    Column("number", Integer, nullable=False),  # among the agent's runs, from 1
    Column("trigger", String(16), nullable=False),  # schedule, manual or baseline
    Column("baseline_of", String(40)),  # the run that this one repeats in FP32
    Column("state", String(16), nullable=False),
    Column("seed", BigInteger, nullable=False),
    Column("due_at", Float, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("available_at", Float, nullable=False),  # earliest start, after a backoff
    Column("position", Integer, nullable=False, server_default="0"),  # lower ones start first
    Column("started_at", Float),
    Column("finished_at", Float),
    Column("active_seconds", Float, nullable=False),  # over its finished attempts
    Column("failures", Integer, nullable=False),
    Column("cancel_requested", Boolean, nullable=False),
    Column("published", Boolean),
    Column("reason", Text),  # of the publication or its refusal
    Column("metrics", JSON),
    Column("primary_metric", Text),  # its name; NULL until evaluated
    Column("primary_value", Float),  # of the last evaluation
    Column("higher_is_better", Boolean),  # direction of the primary metric
    Column("steps", Integer, nullable=False),
    Column("half_steps", Integer, nullable=False),  # steps in half precision
    Column("fp16_steps", BigInteger, nullable=False),
    Column("overflows", BigInteger, nullable=False),
    Column("nonfinite_losses", BigInteger, nullable=False),
    Column("fell_back_at", Float),  # when its worker fell back to FP32 by itself
    Column("precision", JSON),  # as the worker last acknowledged it
    Column("parts", JSON),  # name to totals, of a job with several
    Column("error", Text),
    Column("folder_removed", Text),  # why; NULL while the folder exists
    CheckConstraint(_any_of("state", frozenset(RunState)), name="known_state"),
    Index("runs_by_agent", "agent", "created_at"),
    Index("runs_by_state", "state"),
    Index("runs_by_end", "finished_at"),
    Index(
        "one_active_run_per_agent",
        "agent",
        unique=True,
        sqlite_where=text(_any_of("state", ACTIVE)),
        postgresql_where=text(_any_of("state", ACTIVE)),
    ),
)

attempts = Table(
    "attempts",
    metadata,
    Column("run_id", String(40), ForeignKey("runs.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("incarnation", String(32), nullable=False, unique=True),
    Column("pid", Integer),
    Column("pid_started_at", Float),
    Column("started_at", Float, nullable=False),
    Column("finished_at", Float),
    Column("exit_code", Integer),
    Column("signal", Integer),
    Column("ending", Text),  # before the end: the outcome that the worker reported
    Column("error", Text),  # why it failed; NULL if it did not
    Column("events_offset", BigInteger, nullable=False),
    Column("job", String(63)),  # of an engine; NULL for a process of the daemon's machine
    Column("waiting", Text),  # what it waits for: its engine, or storage; NULL if it does not wait
    Column("waited_seconds", Float, nullable=False, server_default="0"),  # until it started
)

overrides = Table(
    "overrides",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("agent", String(32)),  # NULL: all agents
    Column("precision", String(8), nullable=False),
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("expires_at", Float),
    Column("withdrawn_at", Float),
    Column("next_run", Boolean, nullable=False),  # runs that began before it are unaffected
)

pauses = Table(  # those in force; the audit trail keeps the others
    "pauses",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("agent", String(32)),  # NULL: all agents
    Column("reason", Text, nullable=False),
    Column("actor", Text, nullable=False),
    Column("created_at", Float, nullable=False),
    Column("stops_runs", Boolean, nullable=False),  # a run under way is stopped, too
)

guard_decisions = Table(  # rows are added and never changed; an agent's last is in force
    "guard_decisions",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("agent", String(32), nullable=False),
    Column("at", Float, nullable=False),
    Column("state", String(16), nullable=False),  # watching, tripped, probation
    Column("trigger", String(32)),  # of the last trip
    Column("level", Integer, nullable=False),  # trips in a row
    Column("until", Float),  # end of the cool-down
    Column("run_id", String(40), nullable=False),
    Column("step", Integer),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("evidence", Text, nullable=False),  # file below the home folder
    Column("roles", JSON, nullable=False, server_default="{}"),  # role to its new precision
    Column("modules", JSON, nullable=False, server_default="[]"),  # raised to FP32
    Column("parts", JSON, nullable=False, server_default="{}"),  # part to its new precision
    Index("guard_decisions_by_agent", "agent", "id"),
)

leader = Table(  # one row: the daemon that leads, with PostgreSQL
    "leader",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incarnation", String(32), nullable=False),
    Column("holder", Text, nullable=False),
    Column("place", Text, nullable=False),  # where its process id means something; empty: unknown
    Column("pid", Integer, nullable=False),
    Column("pid_started_at", Float, nullable=False),
    Column("beat", BigInteger, nullable=False),  # counts up while it leads
    Column("released", Boolean, nullable=False),  # it has ended, and its workers before it
)

audit = Table(
    "audit",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("at", Float, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("subject", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("details", JSON, nullable=False),
)
