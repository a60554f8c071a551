"""The guard: events of workers in, automatic rollback to FP32 out, agent by agent."""

from genesis_fp16.guard.guard import Guard

__all__ = ["Guard"]
