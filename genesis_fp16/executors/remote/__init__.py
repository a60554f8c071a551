"""Workers on other machines: one executor for all engines; files on shared storage decide."""

from genesis_fp16.executors.remote.engine import (
    ENGINE_LOG,
    Engine,
    EngineError,
    Finding,
    JobRef,
    JobRequest,
    JobState,
    JobStatus,
    Resources,
)
from genesis_fp16.executors.remote.executor import RemoteExecutor

__all__ = [
    "ENGINE_LOG",
    "Engine",
    "EngineError",
    "Finding",
    "JobRef",
    "JobRequest",
    "JobState",
    "JobStatus",
    "RemoteExecutor",
    "Resources",
]
