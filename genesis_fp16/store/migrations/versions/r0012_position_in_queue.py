"""The position of a run that an operator has moved in the queue."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; nobody has moved runs of earlier releases."""
    op.add_column("runs", sa.Column("position", sa.Integer, nullable=False, server_default="0"))
