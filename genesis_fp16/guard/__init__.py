"""The guard: automatic rollback to FP32, agent by agent, and the ladder back."""

from genesis_fp16.guard.decision import Decision
from genesis_fp16.guard.trigger import GuardState, Trigger

__all__ = ["Decision", "GuardState", "Trigger"]
