"""Recorded experience: storage, schema, split and encoding. Knows no model."""

from infrastructure.trajectories.encoding import FeatureEncoder
from infrastructure.trajectories.features import Features
from infrastructure.trajectories.replay_buffer import (
    BufferSnapshot,
    BufferView,
    ReplayBuffer,
    ReplayBufferWriteError,
)
from infrastructure.trajectories.split import Part, part_of, split_by_group
from infrastructure.trajectories.targets import TargetCodec

__all__ = [
    "BufferSnapshot",
    "BufferView",
    "FeatureEncoder",
    "Features",
    "Part",
    "ReplayBuffer",
    "ReplayBufferWriteError",
    "TargetCodec",
    "part_of",
    "split_by_group",
]
