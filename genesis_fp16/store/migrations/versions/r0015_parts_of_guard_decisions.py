"""Parts whose precision a decision of the guard changes, which were among the modules before."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_PREFIX = "part:"


def upgrade() -> None:
    """Add the column, and move parts in FP32 to it."""
    parts = sa.Column("parts", sa.JSON, nullable=False, server_default="{}")
    op.add_column("guard_decisions", parts)
    table = sa.table(
        "guard_decisions",
        sa.column("id", sa.Integer),
        sa.column("modules", sa.JSON),
        sa.column("parts", sa.JSON),
    )
    connection = op.get_bind()
    for row in connection.execute(sa.select(table.c.id, table.c.modules)).all():
        names = row.modules if isinstance(row.modules, list) else []
        moved = {n.removeprefix(_PREFIX): "fp32" for n in names if str(n).startswith(_PREFIX)}
        if moved:
            modules = [name for name in names if not str(name).startswith(_PREFIX)]
            connection.execute(
                sa.update(table).where(table.c.id == row.id).values(modules=modules, parts=moved)
            )
