"""The guard's decisions, numbered runs, and what is compared between half precision and FP32."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_NUMBER = """
UPDATE runs SET number = (
    SELECT count(*) FROM runs AS earlier
    WHERE earlier.agent = runs.agent AND (
        earlier.created_at < runs.created_at
        OR (earlier.created_at = runs.created_at AND earlier.id <= runs.id)
    )
)
"""


def upgrade() -> None:
    """Create the table, add the columns, and number the runs there are."""
    op.create_table(
        "guard_decisions",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("agent", sa.String(32), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("trigger", sa.String(32)),
        sa.Column("level", sa.Integer, nullable=False),
        sa.Column("until", sa.Float),
        sa.Column("run_id", sa.String(40), nullable=False),
        sa.Column("step", sa.Integer),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("evidence", sa.Text, nullable=False),
    )
    op.create_index("guard_decisions_by_agent", "guard_decisions", ["agent", "id"])
    for column in (
        sa.Column("number", sa.Integer, nullable=False, server_default="0"),
        sa.Column("baseline_of", sa.String(40)),
        sa.Column("primary_metric", sa.Text),
        sa.Column("primary_value", sa.Float),
        sa.Column("higher_is_better", sa.Boolean),
        sa.Column("half_steps", sa.Integer, nullable=False, server_default="0"),
    ):
        op.add_column("runs", column)
    next_run = sa.Column("next_run", sa.Boolean, nullable=False, server_default=sa.false())
    op.add_column("overrides", next_run)
    op.execute(_NUMBER)
