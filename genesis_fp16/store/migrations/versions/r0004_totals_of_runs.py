"""Totals of a run's steps, and its worker's own fallback: a restart reads no events again."""

from __future__ import annotations

import time

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; an unfinished run whose worker fell back last keeps its fallback."""
    for name in ("fp16_steps", "overflows", "nonfinite_losses"):
        op.add_column("runs", sa.Column(name, sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("runs", sa.Column("fell_back_at", sa.Float))
    runs = sa.table(
        "runs",
        sa.column("fell_back_at", sa.Float),
        sa.column("finished_at", sa.Float),
        sa.column("precision", sa.Text),
    )
    fell_back = sa.cast(runs.c.precision, sa.Text).contains('"floor_policy"')
    op.execute(
        sa.update(runs)
        .where(runs.c.finished_at.is_(None), fell_back)
        .values(fell_back_at=time.time())
    )
