"""Why each attempt failed: the run keeps only the last reason."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; why attempts of earlier releases failed is in their logs."""
    op.add_column("attempts", sa.Column("error", sa.Text))
