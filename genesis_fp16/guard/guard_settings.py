"""The guard's thresholds and the canary's share, as settings."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.setting_types import AgentNames, Seconds

MOST_KEPT = 64  # windows, comparisons or pairs of runs that the guard looks back on

_Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
_Drift: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_Few: TypeAlias = Annotated[int, Field(ge=1, le=MOST_KEPT)]


class GuardSettings(BaseModel):
    """What `Settings` says about automatic rollback and canaries; all of it is hot."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    guard_enabled: bool = True
    """Whether the guard may take an agent to FP32 by itself. Hot."""
    guard_reenable: Literal["manual", "auto"] = "manual"
    """Who lets an agent try half precision again: manual (precision clear --guard) or auto. Hot."""
    guard_cooldown_seconds: Seconds = 3600.0
    """Seconds in FP32 before auto tries again; doubled by each relapse. Hot."""
    guard_cooldown_limit_seconds: Seconds = 86400.0
    """The longest cool-down; an agent watched so long without a trip has a clean slate. Hot."""
    guard_window_steps: _Count = 100
    """Steps in half precision, at least, before a share of overflows is judged. Hot."""
    guard_storm_ratio: _Share = 0.3
    """overflow_storm: a larger share of a window's steps overflows. Hot."""
    guard_sustained_ratio: _Share = 0.1
    """overflow_sustained: at least this share overflows, window after window. Hot."""
    guard_sustained_windows: _Few = 5
    """So many windows in a row; on probation one is enough. Hot."""
    guard_nonfinite_losses: _Count = 25
    """nonfinite_loss: so many losses in a row are not finite. Hot."""
    guard_comparisons: _Few = 3
    """loss_drift, underflow, slower_than_fp32: so many comparisons with FP32 agree. Hot."""
    guard_loss_drift: _Drift = 0.05
    """loss_drift: the half loss of a frozen batch is off FP32's by a larger share. Hot."""
    guard_underflow: _Share = 0.2
    """underflow: a larger share of the gradient is lost to zero, and the rest is wrong. Hot."""
    guard_min_speedup: Annotated[float, Field(ge=0, le=100)] = 0.95
    """slower_than_fp32: FP32's time by half precision's is below it, on accelerators. Hot."""
    guard_metric_drift: _Drift = 0.02
    """metric_drift: held-out metric worse than the paired FP32 runs' by a larger share. Hot."""
    guard_pairs: Annotated[int, Field(ge=2, le=MOST_KEPT)] = 3
    """Pairs of runs, at least, before metric_drift is judged. Hot."""
    canary_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Share of each agent's runs that may run in half precision; the rest runs in FP32. Hot."""
    canary_agents: AgentNames = ""
    """Agents that may run in half precision, comma-separated; empty: all. Hot."""

    @property
    def canaries(self) -> tuple[str, ...]:
        """`canary_agents` one by one."""
        return tuple(name.strip() for name in self.canary_agents.split(",") if name.strip())
