"""Pauses of agents."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table; no agent is paused."""
    op.create_table(
        "pauses",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("agent", sa.String(32)),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("created_at", sa.Float, nullable=False),
        sa.Column("stops_runs", sa.Boolean, nullable=False),
    )
