"""The smallest rung of precision: the modules that must be in FP32 so that half precision works.

Unlike `infrastructure.precision_lab.bisect`, it repeats the trainer's own forward passes, module by
module, within a time, and tells a fault that FP32 shows too.
"""

from infrastructure.precision_lab.rung.losses import LossHistory
from infrastructure.precision_lab.rung.search import RungRequest, search_rung

__all__ = ["LossHistory", "RungRequest", "search_rung"]
