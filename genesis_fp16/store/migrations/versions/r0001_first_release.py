"""The tables of the first release."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_STATES = (
    "'cancelled', 'crashed', 'failed', 'queued', 'running', "
    "'starting', 'stopping', 'succeeded', 'timed_out'"
)
_ACTIVE = sa.text("state IN ('running', 'starting', 'stopping')")


def upgrade() -> None:
    """Create them."""
    op.create_table(
        "schedule_state",
        sa.Column("agent", sa.String(32), primary_key=True),
        sa.Column("last_due", sa.Float, nullable=False),
    )
    _create_runs()
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(40), sa.ForeignKey("runs.id"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("incarnation", sa.String(32), nullable=False, unique=True),
        sa.Column("pid", sa.Integer),
        sa.Column("pid_started_at", sa.Float),
        sa.Column("started_at", sa.Float, nullable=False),
        sa.Column("finished_at", sa.Float),
        sa.Column("exit_code", sa.Integer),
        sa.Column("signal", sa.Integer),
        sa.Column("ending", sa.Text),
        sa.Column("events_offset", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "overrides",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("agent", sa.String(32)),
        sa.Column("precision", sa.String(8), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("expires_at", sa.Float),
        sa.Column("withdrawn_at", sa.Float),
    )
    op.create_table(
        "audit",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("details", sa.JSON, nullable=False),
    )


def _create_runs() -> None:
    op.create_table(
        "runs",
        sa.Column("id", sa.String(40), primary_key=True),
        sa.Column("agent", sa.String(32), nullable=False),
        sa.Column("trigger", sa.String(16), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("due_at", sa.Float, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("available_at", sa.Float, nullable=False),
        sa.Column("started_at", sa.Float),
        sa.Column("finished_at", sa.Float),
        sa.Column("active_seconds", sa.Float, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("cancel_requested", sa.Boolean, nullable=False),
        sa.Column("published", sa.Boolean),
        sa.Column("reason", sa.Text),
        sa.Column("metrics", sa.JSON),
        sa.Column("steps", sa.Integer, nullable=False),
        sa.Column("precision", sa.JSON),
        sa.Column("error", sa.Text),
        sa.CheckConstraint(f"state IN ({_STATES})", name="known_state"),
    )
    op.create_index("runs_by_agent", "runs", ["agent", "created_at"])
    op.create_index("runs_by_state", "runs", ["state"])
    op.create_index(
        "one_active_run_per_agent",
        "runs",
        ["agent"],
        unique=True,
        sqlite_where=_ACTIVE,
        postgresql_where=_ACTIVE,
    )
