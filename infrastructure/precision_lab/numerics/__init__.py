"""Half precision that can be switched off place by place, with the real kernels of the half type.

`Numerics` intercepts every call of a torch function and chooses the type it computes in.
"""

from infrastructure.precision_lab.numerics.numerics import Numerics

__all__ = ["Numerics"]
