"""Why the folder of a run is gone."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; no folder was ever removed by an earlier release."""
    op.add_column("runs", sa.Column("folder_removed", sa.Text))
