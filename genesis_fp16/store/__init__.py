"""What the daemon remembers: runs, attempts, due times, overrides, and who changed what."""

from genesis_fp16.store.failure import StoreError
from genesis_fp16.store.lock import DaemonLock, LockHeldError
from genesis_fp16.store.store import Store

__all__ = ["DaemonLock", "LockHeldError", "Store", "StoreError"]
