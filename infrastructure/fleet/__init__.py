"""Models of one shape trained in one step, each with its own loss scale.

`Fleet` steps several `FP16Trainer` together; every member gets the bits of a training of its own.
"""

from infrastructure.fleet.fleet import Fleet, FleetMember
from infrastructure.fleet.forms import NotStackableError, StackedForm
from infrastructure.fleet.stackable import stackable

__all__ = ["Fleet", "FleetMember", "NotStackableError", "StackedForm", "stackable"]
