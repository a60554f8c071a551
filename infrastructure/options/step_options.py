"""Options of the training step that an operator sets: the only declaration of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from infrastructure.options.setting_types import Hot

# An alias is the name in files and, in capitals, that of the variable.
_Growth: TypeAlias = Annotated[float, Field(gt=1, le=1024, alias="fp16_growth_factor")]
_Backoff: TypeAlias = Annotated[float, Field(gt=0, lt=1, alias="fp16_backoff_factor")]
_Adapts: TypeAlias = Annotated[bool, Field(alias="fp16_adaptive_growth_interval")]
_Policy: TypeAlias = Annotated[
    Literal["skip", "fallback_fp32", "halt"], Field(alias="fp16_floor_policy")
]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """Options of the training step: name, bounds, default and meaning of each.

    `TrainerOptions` inherits them for the settings, `FP16TrainingConfig` for the library. Both
    check the bounds; this class does not.
    """

    growth_factor: Hot[_Growth] = 2.0
    """The loss scale is multiplied by this after a growth interval without overflow."""
    backoff_factor: Hot[_Backoff] = 0.5
    """The loss scale is multiplied by this after an overflow."""
    adaptive_growth_interval: Hot[_Adapts] = False
    """Whether the growth interval adapts to how often the loss scale overflows."""
    floor_policy: Hot[_Policy] = "fallback_fp32"
    """Reaction to overflows at the lowest loss scale, one of skip, fallback_fp32 and halt."""
    adaptive_clip: Hot[bool] = False
    """Whether a gradient norm far above the running mean is clipped too."""
    detect_anomaly: Hot[bool] = False
    """Whether to log where a non-finite value first appears; training is several times slower."""
    cuda_graph: Hot[bool] = False
    """Whether whole steps run as CUDA graphs where possible."""
    cpu_half: bool = False
    """Whether half precision may run on a CPU, for tests and demonstrations."""
