"""Checkpoints: atomic, hashed, never unpickled, portable across precisions and ranks."""

from infrastructure.training.checkpoints.best_epoch import BestEpoch, BestEpochError
from infrastructure.training.checkpoints.checkpoint import (
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from infrastructure.training.checkpoints.folder import CheckpointFolder
from infrastructure.training.checkpoints.sharded import read_state, write_state

__all__ = [
    "BestEpoch",
    "BestEpochError",
    "CheckpointError",
    "CheckpointFolder",
    "read_checkpoint",
    "read_state",
    "write_checkpoint",
    "write_state",
]
