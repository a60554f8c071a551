"""Corrections for the mismatch of rollout and trainer, one composable piece for every loss.

`CORRECTIONS` holds the usual ones by name. `Correction` combines rules; `rules` has the classes.
"""

from infrastructure.policy.corrections.corrected import Corrected
from infrastructure.policy.corrections.correction import (
    CORRECTIONS,
    Correction,
    effective_sample_size,
)
from infrastructure.policy.corrections.rules import (
    BinaryKLMask,
    CatastrophicTokenVeto,
    Level,
    ProbabilityGapMask,
    RatioMask,
    TruncatedImportanceSampling,
)

__all__ = [
    "CORRECTIONS",
    "BinaryKLMask",
    "CatastrophicTokenVeto",
    "Corrected",
    "Correction",
    "Level",
    "ProbabilityGapMask",
    "RatioMask",
    "TruncatedImportanceSampling",
    "effective_sample_size",
]
