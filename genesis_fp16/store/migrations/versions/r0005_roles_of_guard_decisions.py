"""Roles that a decision of the guard changes; earlier decisions demanded FP32 for all."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; decisions of earlier releases changed no single role."""
    roles = sa.Column("roles", sa.JSON, nullable=False, server_default="{}")
    op.add_column("guard_decisions", roles)
