"""Diagnostics: anomaly origin, FP32 shadow, FP32 check, profiler; pre-flight in its own folder."""

from infrastructure.training.diagnostics.anomaly import AnomalyDetector
from infrastructure.training.diagnostics.fp32_check import (
    HalfPrecisionInModelError,
    check_fp32_step,
)
from infrastructure.training.diagnostics.fp32_shadow import Fp32Shadow
from infrastructure.training.diagnostics.profiler import StepProfile

__all__ = [
    "AnomalyDetector",
    "Fp32Shadow",
    "HalfPrecisionInModelError",
    "StepProfile",
    "check_fp32_step",
]
