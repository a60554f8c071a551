"""Attempts as jobs of an engine, and how long they waited there."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; attempts of earlier releases were processes, which start at once."""
    op.add_column("attempts", sa.Column("job", sa.String(63)))
    op.add_column("attempts", sa.Column("waiting", sa.Text))
    waited = sa.Column("waited_seconds", sa.Float, nullable=False, server_default="0")
    op.add_column("attempts", waited)
