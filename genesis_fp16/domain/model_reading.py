"""How a published model's predictions compare with what came true."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ModelReading(BaseModel):
    """How a version's predictions compare with what came true.

    Attributes:
        version: The version.
        outcomes: Number of outcomes compared.
        log_loss: Mean log loss of the last windows, in nats.
        expected_loss: What it is held to: the held-out loss, or what the model itself expected of
            decisions that it answered, if that is more. None from an earlier release.
        held_out_loss, base_rate_loss: The same on held-out groups before the publication, of the
            model and of the base rate.
        skill_lost: Share of the held-out skill by which the loss is above the expected one; below 0
            for a gain.
        evidence: Evidence for a mean loss above the expected one, as a share of what the guard
            asks for; 1 and more takes the version back.
        calibration_error: Mean gap between predicted and observed success; None if unknown.
        coverage: Share of outcomes within their 90 % intervals; None if unknown.
        input_drift: Largest shift of an input, in standard deviations; None if unknown.
        gain, gain_low, gain_high: Off-policy estimate, with a 95 % interval, of what the model's
            choices are worth above the agent's own order; None where decisions do not explore
            enough.
    """

    model_config = ConfigDict(frozen=True)
    version: str
    outcomes: int
    log_loss: float
    held_out_loss: float
    base_rate_loss: float
    skill_lost: float
    evidence: float
    expected_loss: float | None = None
    calibration_error: float | None = None
    coverage: float | None = None
    input_drift: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
