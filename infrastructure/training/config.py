"""The trainer's configuration."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from numbers import Real
from typing import Literal

from infrastructure.agent_contract.training_job import module_names
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionWish
from infrastructure.training.precision import Precision


@dataclass(frozen=True, kw_only=True, slots=True)
class FP16TrainingConfig:
    """How `FP16Trainer` steps. The first five defaults are torch's `GradScaler`'s.

    Attributes:
        enabled: False means FP32, regardless of *precision*.
        loss_scale: Initial loss scale, at least *min_loss_scale*.
        growth_factor: The scale is multiplied by this after *growth_interval* clean steps.
        backoff_factor: The scale is multiplied by this on overflow.
        growth_interval: Consecutive steps without overflow before the scale grows.
        max_grad_norm: Clip the global L2 norm of the unscaled gradients to this; None for no
            clipping.
        min_loss_scale: Floor of the scale. Without one, 144 overflows in a row take FP32's
            reciprocal of the scale to infinity, and the next finite step destroys the weights.
        floor_policy: Reaction of `train` to gradients that overflow at the floor: skip their steps
            (``skip``), continue in FP32 (``fallback_fp32``), or fail (``halt``).
        nonfinite_loss_patience: Non-finite losses in a row after which `train` restores the
            weights of its last good checkpoint; the second time it fails.
        accumulate: Micro-batches per optimizer step; their gradients are averaged.
        precision: Half type to use where the hardware allows it; ``auto`` has `train` measure the
            job and choose.
        cpu_half: Run *precision* on a CPU too: slow, for tests and demonstrations.
        adaptive_growth_interval: Adapt the growth interval to the overflows; see
            `AdaptiveLossScale`.
        adaptive_clip: Also clip a norm that stands out of the running mean; see `AdaptiveClip`.
        detect_anomaly: Log the module and operation where a number is not finite; several times
            slower, since every operation waits for the device; see `AnomalyDetector`.
        cuda_graph: `train` takes whole steps as CUDA graphs where that is possible; see
            `GraphedTrainer`.
        keep_fp32: Modules that compute in FP32 under every precision, with all modules inside
            them: qualified names, or patterns in which ``*`` matches any characters.

    Raises:
        ValueError: A value is outside its range.
    """

    enabled: bool = True
    loss_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    max_grad_norm: float | None = 1.0
    min_loss_scale: float = 2.0**-16
    floor_policy: Literal["skip", "fallback_fp32", "halt"] = "fallback_fp32"
    nonfinite_loss_patience: int = 25
    accumulate: int = 1
    precision: Precision | Literal["auto"] = Precision.FP16
    cpu_half: bool = False
    adaptive_growth_interval: bool = False
    adaptive_clip: bool = False
    detect_anomaly: bool = False
    cuda_graph: bool = False
    keep_fp32: Sequence[str] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):  # else "false" would count as true
                _require(isinstance(value, bool), field.name, "True or False", self)
            elif isinstance(field.default, float) and not (
                value is None and field.name == "max_grad_norm"
            ):
                _require(isinstance(value, Real), field.name, "a number", self)
        floor, clip = self.min_loss_scale, self.max_grad_norm
        _require(0.0 < floor < math.inf, "min_loss_scale", "finite and above 0", self)
        limits = f"between min_loss_scale ({floor:g}) and 2**64"
        _require(floor <= self.loss_scale <= 2.0**64, "loss_scale", limits, self)
        _require(1.0 < self.growth_factor <= 1024.0, "growth_factor", "above 1, at most 1024", self)
        _require(0.0 < self.backoff_factor < 1.0, "backoff_factor", "between 0 and 1", self)
        for name in ("growth_interval", "nonfinite_loss_patience", "accumulate"):
            value = getattr(self, name)
            is_count = isinstance(value, int) and value >= 1
            _require(is_count, name, "a whole number, at least 1", self)
        clips = clip is None or 0.0 < clip < math.inf
        _require(clips, "max_grad_norm", "None, or finite and above 0", self)
        known = self.floor_policy in ("skip", "fallback_fp32", "halt")
        _require(known, "floor_policy", "skip, fallback_fp32 or halt", self)
        known = self.precision in ("auto", *Precision)
        _require(known, "precision", "fp32, fp16, bf16 or auto", self)
        object.__setattr__(self, "keep_fp32", module_names(self.keep_fp32))
        if self.precision != "auto":  # its name is accepted too
            object.__setattr__(self, "precision", Precision(self.precision))

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


def _require(holds: bool, name: str, remedy: str, config: FP16TrainingConfig) -> None:
    if not holds:
        raise ValueError(f"{name} must be {remedy}, got {getattr(config, name)!r}")
