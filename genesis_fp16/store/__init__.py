"""The database: runs, attempts, due times, overrides, pauses, guard decisions, audit trail."""

from genesis_fp16.store.errors import StoreError
from genesis_fp16.store.lock import DaemonLock, LockHeldError
from genesis_fp16.store.store import Store

__all__ = ["DaemonLock", "LockHeldError", "Store", "StoreError"]
