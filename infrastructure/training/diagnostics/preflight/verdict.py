"""The choice of the precision to train in, from the measurements of all precisions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from infrastructure.events import PrecisionName
from infrastructure.events.preflight_report import PrecisionMeasurement
from infrastructure.training.diagnostics.preflight.timing import WORTHWHILE

LARGEST_GRADIENT_ERROR = 0.25  # a half type with a larger relative error is not usable


def choose_precision(
    measurements: Sequence[PrecisionMeasurement], *, on_cpu: bool
) -> tuple[PrecisionName, tuple[str, ...]]:
    """Choose the fastest usable half type if it is clearly faster than FP32, otherwise FP32.

    If two half types are about equally fast, choose the one with the smaller gradient error.

    Args:
        measurements: One measurement for each precision, including FP32.
        on_cpu: Whether the device is a CPU, which emulates FP16: FP16 is never chosen there.

    Returns:
        The precision, and the reasons: a line for the choice, then one for each half type.
    """
    halves = [measurement for measurement in measurements if measurement.precision != "fp32"]
    worthwhile = [
        halve
        for halve in halves
        if halve.usable
        and not (on_cpu and halve.precision == "fp16")
        and halve.ratio is not None
        and halve.ratio + (halve.ratio_error or 0.0) <= WORTHWHILE
    ]
    reasons = tuple(_reason(halve) for halve in halves)
    if not worthwhile:
        return "fp32", ("FP32: no half type is both usable and clearly faster", *reasons)
    fastest = min(measurement.ratio or 0.0 for measurement in worthwhile)
    equal = [
        measurement
        for measurement in worthwhile
        if (measurement.ratio or 0.0) <= fastest / WORTHWHILE
    ]
    chosen = min(equal, key=lambda measurement: measurement.gradient_error or 0.0)
    return chosen.precision, (f"{chosen.precision.upper()}: usable and fastest", *reasons)


def _reason(measurement: PrecisionMeasurement) -> str:
    remarks = list(measurement.remarks)
    if measurement.ratio is not None:
        error = measurement.ratio_error or 0.0
        remarks.append(f"a step takes {measurement.ratio:.2f} (±{error:.2f}) of FP32's time")
    if measurement.gradient_error is not None and math.isfinite(measurement.gradient_error):
        remarks.append(f"relative error of its gradient {measurement.gradient_error:.2g}")
    return f"{measurement.precision}: {'; '.join(remarks)}"
