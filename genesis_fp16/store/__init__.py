"""The database: runs, attempts, due times, overrides, guard decisions, audit trail, locks."""

from genesis_fp16.store.errors import StoreError
from genesis_fp16.store.lock import DaemonLock, LockHeldError
from genesis_fp16.store.store import Store

__all__ = ["DaemonLock", "LockHeldError", "Store", "StoreError"]
