"""Automatic rollback to FP32, agent by agent."""

from genesis_fp16.guard.guard import Guard

__all__ = ["Guard"]
