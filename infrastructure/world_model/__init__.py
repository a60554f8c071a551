"""World models: predict the outcome of an action, with calibrated uncertainty.

`WorldModel` is the entry point. Below it: `fitting`, `distributions`, `networks`.
"""

from infrastructure.world_model.model_files import ModelFileError
from infrastructure.world_model.networks import EnsembleNetwork, NetworkShape
from infrastructure.world_model.prediction import Prediction
from infrastructure.world_model.world_model import TEXT_SPEC, EpochRecord, WorldModel

__all__ = [
    "TEXT_SPEC",
    "EnsembleNetwork",
    "EpochRecord",
    "ModelFileError",
    "NetworkShape",
    "Prediction",
    "WorldModel",
]
