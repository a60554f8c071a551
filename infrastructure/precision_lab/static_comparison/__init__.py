"""static comparison: one forward pass in FP32 and in each half type, compared token by token.

`compare` measures; `run` chooses model and sequences and writes the results.
"""

from infrastructure.precision_lab.static_comparison.compare import (
    ComparisonError,
    ComparisonResult,
    ComparisonRow,
    compare,
)
from infrastructure.precision_lab.static_comparison.run import (
    ComparisonRequest,
    half_types,
    run_comparison,
)

__all__ = [
    "ComparisonError",
    "ComparisonRequest",
    "ComparisonResult",
    "ComparisonRow",
    "compare",
    "half_types",
    "run_comparison",
]
