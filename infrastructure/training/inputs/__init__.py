"""Inputs of a step besides the weights: batches on their device, and random generators."""

from infrastructure.training.inputs.batches import to_device
from infrastructure.training.inputs.generators import (
    preserved_generators,
    random_state,
    restore_random_state,
    same_random_state,
    seed_generators,
)

__all__ = [
    "preserved_generators",
    "random_state",
    "restore_random_state",
    "same_random_state",
    "seed_generators",
    "to_device",
]
