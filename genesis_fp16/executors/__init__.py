"""Executors start workers: one interface, and one implementation so far."""

from genesis_fp16.executors.base import Executor, ExitStatus, Handle
from genesis_fp16.executors.local import LocalExecutor

__all__ = ["Executor", "ExitStatus", "Handle", "LocalExecutor"]
