"""The ensemble and its linear baseline: modules and training loss."""

from infrastructure.world_model.networks.loss import ensemble_loss
from infrastructure.world_model.networks.network import (
    EnsembleNetwork,
    LinearNetwork,
    NetworkShape,
    build_seeded,
    without_spare_rows,
)

__all__ = [
    "EnsembleNetwork",
    "LinearNetwork",
    "NetworkShape",
    "build_seeded",
    "ensemble_loss",
    "without_spare_rows",
]
