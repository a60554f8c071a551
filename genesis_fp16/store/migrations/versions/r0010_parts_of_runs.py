"""Steps, overflows, loss and loss scale of each part of a run's job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; jobs of earlier releases have no parts."""
    op.add_column("runs", sa.Column("parts", sa.JSON))
