"""The state ``no_data`` of a run whose sources hold no usable record."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_EARLIER = "'failed', 'queued'"
_STATES = (
    "'cancelled', 'crashed', 'failed', 'no_data', 'queued', 'running', "
    "'starting', 'stopping', 'succeeded', 'timed_out'"
)


def upgrade() -> None:
    """Allow the state."""
    connection = op.get_bind()
    if connection.dialect.name != "sqlite":
        op.drop_constraint("known_state", "runs", type_="check")
        op.create_check_constraint("known_state", "runs", f"state IN ({_STATES})")
        return
    # SQLite cannot change a constraint, and a new table would break the keys that refer to the old
    # one. Its documentation allows to change the text of a CHECK: no row depends on that.
    version = connection.scalar(sa.text("PRAGMA schema_version")) or 0
    connection.exec_driver_sql("PRAGMA writable_schema = ON")
    connection.execute(
        sa.text("UPDATE sqlite_master SET sql = replace(sql, :earlier, :now) WHERE name = 'runs'"),
        {"earlier": _EARLIER, "now": "'failed', 'no_data', 'queued'"},
    )
    connection.exec_driver_sql(f"PRAGMA schema_version = {version + 1}")
    connection.exec_driver_sql("PRAGMA writable_schema = OFF")
