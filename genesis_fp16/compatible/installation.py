"""Puts the compatible names into the modules from which Genesis' code imports them."""

from __future__ import annotations

import infrastructure
import infrastructure.training
import infrastructure.world_model
from genesis_fp16.compatible import trainers, world_model


def install() -> None:
    """Let this process import Genesis' names from ``infrastructure`` and its packages.

    ``infrastructure`` must be ours. Code that has imported a name before keeps what it has.
    """
    places = {
        infrastructure: {"OutcomeTag": world_model.OutcomeTag},
        infrastructure.training: {name: getattr(trainers, name) for name in trainers.__all__},
        infrastructure.world_model: {
            name: getattr(world_model, name) for name in world_model.__all__ if name != "OutcomeTag"
        },
    }
    for module, names in places.items():
        for name, value in names.items():
            setattr(module, name, value)
