"""The trainer's configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from infrastructure.agent_contract.training_job import module_names
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionWish
from infrastructure.options import StepOptions
from infrastructure.options.setting_types import Count
from infrastructure.training.precision import Precision

_STRICT = ConfigDict(strict=True, extra="forbid", validate_by_name=True, validate_by_alias=False)


def _by_name(precision: object) -> object:
    known = {"auto": "auto"} | {each.value: each for each in Precision}
    if not isinstance(precision, str) or precision not in known:
        raise ValueError(f"precision must be fp32, fp16, bf16 or auto, got {precision!r}")
    return known[precision]


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class FP16TrainingConfig(StepOptions):
    """How `FP16Trainer` steps, by the fields here and those of `StepOptions`.

    The defaults of scale, factors and interval are those of torch's `GradScaler`. At the floor of
    the scale, `train` skips the steps that overflow (*floor_policy* ``skip``), continues in FP32
    (``fallback_fp32``), or fails (``halt``). See `AdaptiveLossScale`, `AdaptiveClip`,
    `AnomalyDetector` and `GraphedTrainer` for the options that are off by default.

    Raises:
        ValueError: A value is of the wrong type or outside its range.
    """

    enabled: bool = True
    """False means FP32, regardless of *precision*."""
    loss_scale: Annotated[float, Field(le=2.0**64)] = 65536.0
    """Initial loss scale, at least *min_loss_scale*."""
    growth_interval: Count = 2000
    """Consecutive steps without overflow before the scale grows."""
    min_loss_scale: Annotated[float, Field(gt=0)] = 2.0**-16
    """Floor of the scale. Without one, 144 overflows in a row take FP32's reciprocal of the scale
    to infinity, and the next finite step destroys the weights."""
    max_grad_norm: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 1.0
    """Clip the global L2 norm of the unscaled gradients to this; None for no clipping."""
    nonfinite_loss_patience: Count = 25
    """Non-finite losses in a row after which `train` restores the weights of its last good
    checkpoint; the second time it fails."""
    accumulate: Count = 1
    """Micro-batches per optimizer step; their gradients are averaged."""
    precision: Annotated[Precision | Literal["auto"], BeforeValidator(_by_name)] = Precision.FP16
    """Half type to use where the hardware allows it; ``auto`` has `train` measure the job and
    choose."""
    keep_fp32: Annotated[Sequence[str], BeforeValidator(module_names)] = ()
    """Modules that compute in FP32 under every precision, with all modules inside them, by
    qualified names or by patterns in which ``*`` matches any characters."""

    def __post_init__(self) -> None:
        if self.loss_scale < self.min_loss_scale:
            limit = f"at least min_loss_scale, {self.min_loss_scale:g}"
            raise ValueError(f"loss_scale must be {limit}, got {self.loss_scale!r}")

    @classmethod
    def preset(cls, name: Literal["fast-growth"]) -> FP16TrainingConfig:
        """The configuration of a published recipe; change it with `dataclasses.replace`.

        ``fast-growth`` is Qi et al. 2025, "Defeating the Training-Inference Mismatch via FP16":
        FP16 whose scale tries to grow after 400 clean steps.

        Raises:
            ValueError: *name* is not a preset.
        """
        if name != "fast-growth":
            raise ValueError(f"{name!r} is not a preset; the only one is 'fast-growth'")
        return cls(growth_interval=400)

    @property
    def wish(self) -> PrecisionState:
        """The precision this configuration asks for, before the hardware is checked."""
        name: PrecisionWish = "auto" if self.precision == "auto" else self.precision.value
        if self.enabled:
            return PrecisionState(requested=name, effective=name, reason="default")
        return PrecisionState(requested=name, effective="fp32", reason="flag")
