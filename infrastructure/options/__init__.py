"""Options that an operator sets and the library takes, each declared once; imports no torch.

The daemon's settings inherit them, the specification of an attempt carries them.
"""

from infrastructure.options.loop_settings import LoopSettings
from infrastructure.options.step_options import StepOptions

__all__ = ["LoopSettings", "StepOptions"]
