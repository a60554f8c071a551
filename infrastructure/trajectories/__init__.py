"""Recorded experience: replay buffer, schema, held-out split, encoding, Genesis' own records.

Knows no model. Importing this package imports no torch; the encoders are in `encoding`.
"""

from infrastructure.trajectories.replay_buffer import (
    BufferSnapshot,
    BufferView,
    ReplayBuffer,
    ReplayBufferWriteError,
)
from infrastructure.trajectories.split import Part, part_of, split_rows

__all__ = [
    "BufferSnapshot",
    "BufferView",
    "Part",
    "ReplayBuffer",
    "ReplayBufferWriteError",
    "part_of",
    "split_rows",
]
