"""The guard's triggers, settings, findings and decisions, and how one decision follows another.

``watching -> tripped -> probation -> watching``: a trip demands FP32; half precision comes back
on probation, by an operator's word or after the cool-down; a run that proves itself ends that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from genesis_fp16.domain.setting_types import AgentNames, Hot, Seconds

GUARD = "guard"  # the actor of what nobody ordered
MOST_KEPT = 64  # windows, comparisons or pairs of runs that the guard looks back on

_Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
_Drift: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_Few: TypeAlias = Annotated[int, Field(ge=1, le=MOST_KEPT)]


class Trigger(StrEnum):
    """Why the guard takes an agent to FP32."""

    OVERFLOW_STORM = "overflow_storm"  # too many overflows in one window
    OVERFLOW_SUSTAINED = "overflow_sustained"  # many, over several windows
    SCALE_FLOOR = "scale_floor"  # overflows although the loss scale cannot fall further
    NONFINITE_LOSS = "nonfinite_loss"  # losses in a row that are not finite
    LOSS_DRIFT = "loss_drift"  # the half loss of a frozen batch is off the FP32 one
    METRIC_DRIFT = "metric_drift"  # held-out metric worse than in paired FP32 runs
    SLOWER_THAN_FP32 = "slower_than_fp32"  # on accelerators
    UNDERFLOW = "underflow"  # gradients vanish in half precision


class GuardState(StrEnum):
    """How far the guard trusts an agent with half precision."""

    WATCHING = "watching"  # half precision is allowed
    TRIPPED = "tripped"  # FP32 until the cool-down is over or an operator clears it
    PROBATION = "probation"  # half precision on trial: a relapse doubles the cool-down


class GuardSettings(BaseModel):
    """Settings of automatic rollback and canaries, which `Settings` inherits."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    guard_enabled: Hot[bool] = True
    """Whether the guard may move an agent to FP32 on its own."""
    guard_reenable: Hot[Literal["manual", "auto"]] = "manual"
    """Who allows half precision again after a trip: manual (precision clear --guard) or auto."""
    guard_cooldown_seconds: Hot[Seconds] = 3600.0
    """Seconds in FP32 before auto tries half precision again; each relapse doubles them."""
    guard_cooldown_limit_seconds: Hot[Seconds] = 86400.0
    """Longest cool-down in seconds; this long without a trip ends the doubling."""
    guard_window_steps: Hot[_Count] = 100
    """Fewest half-precision steps in a window whose share of overflows is checked."""
    guard_storm_ratio: Hot[_Share] = 0.3
    """overflow_storm: more than this share of one window's steps overflows."""
    guard_sustained_ratio: Hot[_Share] = 0.1
    """overflow_sustained: at least this share of steps overflows in consecutive windows."""
    guard_sustained_windows: Hot[_Few] = 5
    """overflow_sustained: number of consecutive windows; on probation one is enough."""
    guard_nonfinite_losses: Hot[_Count] = 25
    """nonfinite_loss: number of consecutive losses that are not finite."""
    guard_comparisons: Hot[_Few] = 3
    """loss_drift, underflow, slower_than_fp32: number of comparisons with FP32 that agree."""
    guard_loss_drift: Hot[_Drift] = 0.05
    """loss_drift: the loss of a frozen batch differs from FP32's by more than this share."""
    guard_underflow: Hot[_Share] = 0.2
    """underflow: more than this share of the gradient becomes zero, and the rest is wrong."""
    guard_min_speedup: Hot[Annotated[float, Field(ge=0, le=100)]] = 0.95
    """slower_than_fp32: FP32's step time divided by half's is below this, on accelerators."""
    guard_metric_drift: Hot[_Drift] = 0.02
    """metric_drift: the held-out metric is worse than paired FP32 runs' by more than this share."""
    guard_pairs: Hot[Annotated[int, Field(ge=2, le=MOST_KEPT)]] = 3
    """metric_drift: fewest pairs of runs that are compared."""
    canary_share: Hot[Annotated[float, Field(ge=0, le=1)]] = 1.0
    """Share of each agent's runs that may use half precision; the others run in FP32."""
    canary_agents: Hot[AgentNames] = ""
    """Agents that may use half precision, separated by commas; empty: all."""

    @property
    def canaries(self) -> tuple[str, ...]:
        """`canary_agents` one by one."""
        return tuple(name.strip() for name in self.canary_agents.split(",") if name.strip())


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Attributes:
    trigger: Its name.
    said: What was found, in one sentence with its numbers.
    numbers: The same for machines.
    """

    trigger: Trigger
    said: str
    numbers: Mapping[str, object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """One training in half precision and the same one in FP32.

    Attributes:
        half_run, fp32_run: Identities of the runs.
        metric: Name of the primary metric.
        half, fp32: Its values on the same held-out data.
        higher_is_better: Which way it counts.
    """

    half_run: str
    fp32_run: str
    metric: str
    half: float
    fp32: float
    higher_is_better: bool

    @property
    def worse_by(self) -> float:
        """How much worse half precision did, as a share of FP32's value; below 0 if better."""
        if not math.isfinite(self.half):
            return math.inf
        if self.fp32 == 0:
            return math.copysign(math.inf, self._lost) if self._lost else 0.0
        return self._lost / abs(self.fp32)

    @property
    def worse_share(self) -> float:
        """The same as a share of the larger value, which stays small however bad it is."""
        if not math.isfinite(self.half):
            return 1.0
        return self._lost / (max(abs(self.half), abs(self.fp32)) or 1.0)

    @property
    def _lost(self) -> float:
        return self.fp32 - self.half if self.higher_is_better else self.half - self.fp32


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What stands for an agent from one moment on.

    Attributes:
        agent: Whom it concerns.
        state: See `GuardState`.
        at: Unix time in seconds; 0 where the guard has never decided anything.
        trigger: Of the last trip; None where there was none.
        level: Trips in a row, which make the cool-down longer; 0 for a clean slate.
        until: Unix time at which the cool-down ends; None unless tripped.
        run_id, step: Where it was decided; empty and None where no run is concerned.
        actor: ``guard`` or an operator.
        reason: Why, in one sentence.
        evidence: File below the home folder that holds the numbers; empty where there is none.
    """

    agent: str
    state: GuardState = GuardState.WATCHING
    at: float = 0.0
    trigger: Trigger | None = None
    level: int = 0
    until: float | None = None
    run_id: str = ""
    step: int | None = None
    actor: str = GUARD
    reason: str = ""
    evidence: str = ""


def trip(
    last: Decision, found: Finding, settings: GuardSettings, *, now: float, run_id: str, step: int
) -> Decision | None:
    """Answer a finding: FP32 from now on. None if that is in force already, or may not be.

    A relapse, on probation or while the slate is not clean, doubles the cool-down.
    """
    if last.state is GuardState.TRIPPED or not settings.guard_enabled:
        return None
    longest = settings.guard_cooldown_limit_seconds
    clean = last.state is GuardState.WATCHING and now - last.at >= longest
    level = 1 if clean else last.level + 1
    cooldown = min(longest, settings.guard_cooldown_seconds * 2.0 ** min(level - 1, 32))
    return Decision(
        agent=last.agent,
        state=GuardState.TRIPPED,
        at=now,
        trigger=found.trigger,
        level=level,
        until=now + cooldown,
        run_id=run_id,
        step=step,
        reason=found.said,
    )


def try_again(
    last: Decision, settings: GuardSettings, *, now: float, run_id: str
) -> Decision | None:
    """Let the run that begins have half precision on probation, if the cool-down is over.

    None where it is not, where nothing tripped, or where only an operator may decide it.
    """
    if last.state is not GuardState.TRIPPED or settings.guard_reenable != "auto":
        return None
    if now < (last.until or now) or run_id == last.run_id:
        return None
    return replace(
        last,
        state=GuardState.PROBATION,
        at=now,
        until=None,
        run_id=run_id,
        step=None,
        reason="the cool-down is over: this run tries half precision again",
        evidence="",
    )


def clear(last: Decision, *, now: float, actor: str, reason: str) -> Decision | None:
    """Take an operator's word that half precision may be tried again; None if nothing tripped."""
    if last.state is not GuardState.TRIPPED:
        return None
    return replace(
        last,
        state=GuardState.PROBATION,
        at=now,
        until=None,
        run_id="",
        step=None,
        actor=actor,
        reason=reason,
        evidence="",
    )


def prove(
    last: Decision, settings: GuardSettings, *, now: float, run_id: str, half_steps: int
) -> Decision | None:
    """End the probation after a run that succeeded; None if none is on or it proves too little.

    Args:
        last: What stands.
        settings: Say how many steps are proof: those of one window.
        now: Unix time in seconds.
        run_id: The run that succeeded.
        half_steps: Steps in half precision since the probation began.
    """
    if last.state is not GuardState.PROBATION or half_steps < settings.guard_window_steps:
        return None
    return replace(
        last,
        state=GuardState.WATCHING,
        at=now,
        run_id=run_id,
        step=None,
        actor=GUARD,
        reason=f"the run succeeded, and nothing was found in {half_steps} half-precision steps",
        evidence="",
    )
