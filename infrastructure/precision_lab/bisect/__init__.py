"""Bisection: the smallest set of places whose FP32 brings a result to the noise floor.

`bisect` searches by role, module and operation; `NoiseFloor` measures what half precision must
lose; `Cure` has the settings to write into a training.
"""

from infrastructure.precision_lab.bisect.bisect import TOLERANCE, Bisection, Culprit, bisect
from infrastructure.precision_lab.bisect.bisect_folder import bisect_folder
from infrastructure.precision_lab.bisect.cure import Cure
from infrastructure.precision_lab.bisect.noise_floor import Deviation, NoiseFloor, NotFiniteError

__all__ = [
    "TOLERANCE",
    "Bisection",
    "Culprit",
    "Cure",
    "Deviation",
    "NoiseFloor",
    "NotFiniteError",
    "bisect",
    "bisect_folder",
]
