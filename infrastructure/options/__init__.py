"""Options that an operator sets and the library takes, each declared once; imports no torch.

The daemon's settings inherit them, the specification of an attempt carries them.
"""

from infrastructure.options.loop_settings import LoopSettings

__all__ = ["LoopSettings"]
