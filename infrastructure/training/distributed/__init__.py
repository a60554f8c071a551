"""Several ranks under torchrun: DDP, FSDP2, and decisions that all ranks share."""

from infrastructure.training.distributed.modules import (
    DistributedModel,
    Parallel,
    distribute,
    is_sharded,
    process_group,
)
from infrastructure.training.distributed.ranks import RankBatch, Ranks

__all__ = [
    "DistributedModel",
    "Parallel",
    "RankBatch",
    "Ranks",
    "distribute",
    "is_sharded",
    "process_group",
]
