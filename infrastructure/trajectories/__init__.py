"""Recorded experience: storage, schema, split and encoding. Knows no model.

What stands here imports no torch; the encoders are in `encoding`, `features` and `targets`.
"""

from infrastructure.trajectories.replay_buffer import (
    BufferSnapshot,
    BufferView,
    ReplayBuffer,
    ReplayBufferWriteError,
)
from infrastructure.trajectories.split import Part, part_of, split_by_group

__all__ = [
    "BufferSnapshot",
    "BufferView",
    "Part",
    "ReplayBuffer",
    "ReplayBufferWriteError",
    "part_of",
    "split_by_group",
]
