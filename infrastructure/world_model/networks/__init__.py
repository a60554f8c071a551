"""The ensemble and its linear baseline: modules, training loss, weights on disk."""

from infrastructure.world_model.networks.loss import ensemble_loss
from infrastructure.world_model.networks.network import (
    EnsembleNetwork,
    LinearNetwork,
    NetworkShape,
    build_seeded,
    without_spare_rows,
)
from infrastructure.world_model.networks.weights import ModelFileError

__all__ = [
    "EnsembleNetwork",
    "LinearNetwork",
    "ModelFileError",
    "NetworkShape",
    "build_seeded",
    "ensemble_loss",
    "without_spare_rows",
]
