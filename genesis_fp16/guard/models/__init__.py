"""Guard for models: predictions against outcomes, and back to the version before on evidence."""

from genesis_fp16.guard.models.model_guard import ModelGuard
from genesis_fp16.guard.models.watch import WatchedAgent, read_watched

__all__ = ["ModelGuard", "WatchedAgent", "read_watched"]
