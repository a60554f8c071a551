"""The precision lab: which role, which module and which operation loses what half precision loses.

It freezes a piece of training, repeats it under any precision, measures the difference, and finds
the places that cause it. It holds the only code that keeps trained weights in half precision.
"""

from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.experiment import Experiment, ExperimentResult
from infrastructure.precision_lab.places import Operation, Place, PlaceError

__all__ = ["Experiment", "ExperimentResult", "LabError", "Operation", "Place", "PlaceError"]
