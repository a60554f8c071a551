"""An index of the runs by their end, for the export of traces."""

from __future__ import annotations

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    op.create_index("runs_by_end", "runs", ["finished_at"])
