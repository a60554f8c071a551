"""What an operator may say about the training step, as settings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.run_spec import TrainerOptions
from genesis_fp16.domain.setting_types import EMPTY_IS_NONE


class TrainerSettings(BaseModel):
    """What `Settings` says about the trainer of new attempts; all of it is hot."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    fp16_loss_scale: Annotated[
        Annotated[float, Field(ge=2.0**-16, le=2.0**64)] | None, EMPTY_IS_NONE
    ] = None
    """Initial loss scale of new runs; empty: what preflight recommended, else 65536. Hot."""
    fp16_growth_factor: Annotated[float, Field(gt=1, le=1024)] = 2.0
    """The scale is multiplied by it after a growth interval without overflow. Hot."""
    fp16_backoff_factor: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """The scale is multiplied by it after an overflow. Hot."""
    fp16_growth_interval: Annotated[
        Annotated[int, Field(ge=1, le=2**31 - 1)] | None, EMPTY_IS_NONE
    ] = None
    """Steps without overflow before the scale grows; empty: the preset's, else 2000. Hot."""
    fp16_preset: Annotated[Literal["precision-rl"] | None, EMPTY_IS_NONE] = None
    """precision-rl (Qi et al. 2025): a growth interval of 400; empty: none. Hot."""
    fp16_adaptive_growth_interval: bool = False
    """Whether the growth interval follows from the overflows. Hot."""
    fp16_min_loss_scale: Annotated[float, Field(ge=2.0**-24, le=2.0**64)] = 2.0**-16
    """Floor of the scale. Hot."""
    fp16_floor_policy: Literal["skip", "fallback_fp32", "halt"] = "fallback_fp32"
    """When gradients overflow at the floor: skip the steps, fallback_fp32 or halt. Hot."""
    max_grad_norm: Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)] = 1.0
    """Gradients are clipped to this global norm, in every precision; 0: no clipping. Hot."""
    adaptive_clip: bool = False
    """Whether a gradient norm that stands out of the running mean is clipped too. Hot."""
    detect_anomaly: bool = False
    """Whether the origin of numbers that are not finite is logged; several times slower. Hot."""
    cuda_graph: bool = False
    """Whether whole steps run as CUDA graphs where they can. Hot."""
    profile_steps: Annotated[int, Field(ge=0, le=1000)] = 0
    """Steps of each attempt to profile, into the run's folder; 0: none. Hot."""

    def trainer_options(self) -> TrainerOptions:
        """The same for a worker."""
        return TrainerOptions(
            preset=self.fp16_preset,
            loss_scale=self.fp16_loss_scale,
            growth_factor=self.fp16_growth_factor,
            backoff_factor=self.fp16_backoff_factor,
            growth_interval=self.fp16_growth_interval,
            adaptive_growth_interval=self.fp16_adaptive_growth_interval,
            min_loss_scale=self.fp16_min_loss_scale,
            floor_policy=self.fp16_floor_policy,
            max_grad_norm=self.max_grad_norm or None,
            adaptive_clip=self.adaptive_clip,
            detect_anomaly=self.detect_anomaly,
            cuda_graph=self.cuda_graph,
        )
