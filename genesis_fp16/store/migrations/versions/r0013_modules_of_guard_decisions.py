"""Modules that a decision of the guard raises to FP32; earlier decisions raised none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    modules = sa.Column("modules", sa.JSON, nullable=False, server_default="[]")
    op.add_column("guard_decisions", modules)
