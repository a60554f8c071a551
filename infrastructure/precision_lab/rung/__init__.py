"""The smallest rung of precision: the modules that must be in FP32 so that half precision works.

Unlike `infrastructure.precision_lab.bisect`, it repeats the trainer's own forward passes, module by
module, within a time, and tells a fault that FP32 shows too. The search is in `search`, which a
training's own process does not import.
"""

from infrastructure.precision_lab.rung.losses import LossHistory
from infrastructure.precision_lab.rung.request import RungRequest

__all__ = ["LossHistory", "RungRequest"]
