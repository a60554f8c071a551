"""Results of a pre-flight measurement of a training job; part of an event, and a file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from infrastructure.events.bounds import Amount, AnyNumber, Count
from infrastructure.events.plain_text import PlainText
from infrastructure.events.precision_state import ModuleNames, PrecisionName


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")


class PrecisionMeasurement(_Part):
    """One precision, tried on a copy of the job's model.

    Attributes:
        usable: Whether the job can train in it on this device.
        remarks: Why it is not usable, or was not timed.
        seconds_per_step: Median time of a whole optimizer step; None if it was not timed.
        ratio: Median over pairs of its time divided by FP32's; None if it was not timed.
        ratio_error: Standard error of *ratio*.
        saved_bytes: Bytes that the forward pass keeps for the backward pass, without parameters
            and batch; counted exactly.
        peak_bytes: CUDA memory at its peak in a step, above what was allocated before the
            measurement; None without CUDA.
        gradient_error: Length of the difference between its gradient and FP32's, divided by the
            length of FP32's; None if it was not computed.
    """

    precision: PrecisionName
    usable: bool = True
    remarks: tuple[PlainText, ...] = ()
    seconds_per_step: Amount | None = None
    ratio: AnyNumber | None = None
    ratio_error: AnyNumber | None = None
    saved_bytes: Count | None = None
    peak_bytes: Count | None = None
    gradient_error: AnyNumber | None = None


class ModuleExtremes(_Part):
    """Extreme values inside one module, from an FP32 pass, that FP16 would have to represent.

    Attributes:
        module: Qualified name and class.
        activation: Largest magnitude of a value that FP16 would hold in the forward pass.
        gradient: Largest magnitude of a gradient that FP16 would hold, at loss scale 1.
        underflow: Fraction of those gradients' elements that FP16 would flush to zero at the
            recommended loss scale.
        keep_fp32: Whether it must stay in FP32 because its activations do not fit.
    """

    module: PlainText
    activation: AnyNumber
    gradient: AnyNumber
    underflow: AnyNumber
    keep_fp32: bool


class PreflightReport(_Part):
    """Measurements of all precisions, and the recommendation.

    Attributes:
        measured_at: Unix time in seconds.
        device_name: Name that the device reports.
        threads: Torch's threads.
        batches: Number of micro-batches that were measured.
        measurements: One for each precision, FP32 first.
        modules: Modules that would compute in FP16, the largest activation first.
        largest_safe_scale: The highest power of two at which no gradient overflowed; None if
            FP16 computes no gradient.
        recommended_scale: One power of two below it.
        underflow: Fraction of all FP16 gradients' elements flushed to zero at that scale.
        verdict: Precision to train in.
        proposed_keep_fp32: Modules with which FP16, by a replay of these batches, agrees with FP32;
            empty if none are needed or known.
        proposal: What a search for them has found, in one sentence; empty if it was not made.
    """

    measured_at: Amount
    device: PlainText
    device_name: PlainText
    torch_version: PlainText
    threads: Count
    batches: Count
    measurements: tuple[PrecisionMeasurement, ...]
    modules: tuple[ModuleExtremes, ...]
    largest_safe_scale: AnyNumber | None
    recommended_scale: AnyNumber | None
    underflow: AnyNumber
    verdict: PrecisionName
    reasons: tuple[PlainText, ...]
    proposed_keep_fp32: ModuleNames = ()
    proposal: PlainText = ""

    @property
    def keep_fp32(self) -> tuple[str, ...]:
        """Modules whose activations FP16 cannot hold."""
        return tuple(module.module for module in self.modules if module.keep_fp32)
