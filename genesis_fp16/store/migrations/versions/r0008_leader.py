"""The daemon that leads, where several share a database."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("incarnation", sa.String(32), nullable=False),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("place", sa.Text, nullable=False),
        sa.Column("pid", sa.Integer, nullable=False),
        sa.Column("pid_started_at", sa.Float, nullable=False),
        sa.Column("beat", sa.BigInteger, nullable=False),
        sa.Column("released", sa.Boolean, nullable=False),
    )
