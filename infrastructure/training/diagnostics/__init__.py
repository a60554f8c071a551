"""Diagnostics: anomaly origin, overflow cause, lost updates, FP32 shadow and check, profiler.

Pre-flight is in its own folder.
"""

from infrastructure.training.diagnostics.anomaly import AnomalyDetector
from infrastructure.training.diagnostics.fp32_check import (
    HalfPrecisionInModelError,
    check_fp32_step,
)
from infrastructure.training.diagnostics.fp32_shadow import Fp32Shadow
from infrastructure.training.diagnostics.profiler import StepProfile
from infrastructure.training.diagnostics.repeated_pass import RepeatedPasses

__all__ = [
    "AnomalyDetector",
    "Fp32Shadow",
    "HalfPrecisionInModelError",
    "RepeatedPasses",
    "StepProfile",
    "check_fp32_step",
]
