"""World models: what an action will lead to, and how sure that is."""

from infrastructure.world_model.artefact import ModelFileError
from infrastructure.world_model.network import EnsembleNetwork, NetworkShape
from infrastructure.world_model.prediction import Prediction
from infrastructure.world_model.training_history import EpochRecord
from infrastructure.world_model.world_model import TEXT_SPEC, WorldModel

__all__ = [
    "TEXT_SPEC",
    "EnsembleNetwork",
    "EpochRecord",
    "ModelFileError",
    "NetworkShape",
    "Prediction",
    "WorldModel",
]
