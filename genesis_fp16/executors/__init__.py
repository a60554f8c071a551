"""Executors start workers: one interface; processes of this machine, or jobs of an engine."""

from genesis_fp16.executors.base import Executor, ExitStatus, Handle
from genesis_fp16.executors.local import LocalExecutor

__all__ = ["Executor", "ExitStatus", "Handle", "LocalExecutor"]
