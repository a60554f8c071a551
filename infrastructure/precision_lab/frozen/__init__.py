"""The folder of a frozen experiment: written once, hashed, verified when read, never unpickled.

``manifest.json`` names every other file with its size and SHA-256; ``weights/`` has a file for each
model, ``batches/`` one for each batch, and ``data/`` the transitions of an agent.
"""

from infrastructure.precision_lab.frozen.folder import FrozenFolder, check_new
from infrastructure.precision_lab.frozen.loading import (
    load_policy_experiment,
    load_world_model_experiment,
)
from infrastructure.precision_lab.frozen.manifest import AgentSource, FrozenError, Manifest
from infrastructure.precision_lab.frozen.saving import (
    save_policy_experiment,
    save_world_model_experiment,
)

__all__ = [
    "AgentSource",
    "FrozenError",
    "FrozenFolder",
    "Manifest",
    "check_new",
    "load_policy_experiment",
    "load_world_model_experiment",
    "save_policy_experiment",
    "save_world_model_experiment",
]
