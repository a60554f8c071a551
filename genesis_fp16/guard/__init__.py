"""Automatic rollback to FP32, agent by agent: the guard, and the workers' own fallbacks."""

from genesis_fp16.guard.fallbacks import Fallbacks
from genesis_fp16.guard.guard import Guard

__all__ = ["Fallbacks", "Guard"]
