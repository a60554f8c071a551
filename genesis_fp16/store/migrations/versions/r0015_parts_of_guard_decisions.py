"""Parts whose precision a decision of the guard changes; earlier decisions changed none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    parts = sa.Column("parts", sa.JSON, nullable=False, server_default="{}")
    op.add_column("guard_decisions", parts)
