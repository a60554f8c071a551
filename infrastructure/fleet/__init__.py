"""Models of one shape trained in one step, each with its own loss scale.

`Fleet` steps several `FP16Trainer` together; every member gets the bits of a training of its own.
`Trainings` advances whole trainings so, from their first step to their last evaluation.
"""

from infrastructure.fleet.fleet import Fleet
from infrastructure.fleet.forms import NotStackableError, StackedForm
from infrastructure.fleet.losses import StackableLoss
from infrastructure.fleet.members import FleetMember
from infrastructure.fleet.stackable import not_stackable_reason, shape_text
from infrastructure.fleet.trainings import Ended, Standing, Trainings

__all__ = [
    "Ended",
    "Fleet",
    "FleetMember",
    "NotStackableError",
    "StackableLoss",
    "StackedForm",
    "Standing",
    "Trainings",
    "not_stackable_reason",
    "shape_text",
]
