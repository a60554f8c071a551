"""Half precision that can be switched off place by place, with the real kernels of the half type.

`Numerics` intercepts every call of a torch function and chooses the type it computes in.
"""

from infrastructure.precision_lab.numerics.numerics import Numerics
from infrastructure.precision_lab.numerics.operand_noise import OperandNoise, unit_roundoff

__all__ = ["Numerics", "OperandNoise", "unit_roundoff"]
