"""The names of Genesis' own trainers and world model, on ours, for its code and its tests.

`install` puts them where Genesis' code imports them from. Each warns with a DeprecationWarning that
names its successor. No other room imports this one.
"""

from genesis_fp16.compatible.installation import install
from genesis_fp16.compatible.trainers import (
    ExtendedFP16Config,
    ExtendedFP16Trainer,
    FP16Trainer,
    PrecisionMode,
    cleanup_distributed,
    init_distributed,
)
from genesis_fp16.compatible.world_model import OutcomeTag, WorldModel, WorldState

__all__ = [
    "ExtendedFP16Config",
    "ExtendedFP16Trainer",
    "FP16Trainer",
    "OutcomeTag",
    "PrecisionMode",
    "WorldModel",
    "WorldState",
    "cleanup_distributed",
    "init_distributed",
    "install",
]
