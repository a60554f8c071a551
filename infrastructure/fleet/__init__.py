"""Models of one shape trained in one step, each with its own loss scale.

`Fleet` steps several `FP16Trainer` together; every member gets the bits of a training of its own.
It is wrapped around trainers, which do not know it.
"""

from infrastructure.fleet.fleet import Fleet
from infrastructure.fleet.forms import NotStackableError, StackedForm
from infrastructure.fleet.losses import StackableLoss
from infrastructure.fleet.members import FleetMember
from infrastructure.fleet.stackable import not_stackable_reason

__all__ = [
    "Fleet",
    "FleetMember",
    "NotStackableError",
    "StackableLoss",
    "StackedForm",
    "not_stackable_reason",
]
