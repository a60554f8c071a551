"""Models of one shape trained in one step, each with its own loss scale.

`Fleet` steps several `FP16Trainer` together; every member gets the bits of a training of its own.
"""

from infrastructure.fleet.fleet import Fleet, FleetMember
from infrastructure.fleet.forms import NotStackableError, StackedForm
from infrastructure.fleet.gain import Gain, measure_gain
from infrastructure.fleet.losses import StackableLoss
from infrastructure.fleet.stackable import shape_text, stackable

__all__ = [
    "Fleet",
    "FleetMember",
    "Gain",
    "NotStackableError",
    "StackableLoss",
    "StackedForm",
    "measure_gain",
    "shape_text",
    "stackable",
]
