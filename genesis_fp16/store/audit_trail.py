"""Who changed what by hand, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from sqlalchemy import Connection, insert

from genesis_fp16.store.schema import audit


@dataclass(frozen=True, slots=True)
class Change:
    """Who changed what, and why; *at* is set by the store."""

    actor: str
    action: str
    subject: str
    reason: str
    details: Mapping[str, object] = field(default_factory=dict)
    at: float = 0.0


def write_audit(connection: Connection, now: float, change: Change) -> None:
    """Append *change* to the audit trail within the caller's transaction."""
    connection.execute(insert(audit).values({**asdict(change), "at": now}))
