"""The guard's triggers, settings and decisions, the canaries, and which decision follows another.

``watching -> tripped -> probation -> watching``: a trip demands FP32, or another precision for
single roles of a policy job. What was in force before returns on probation, when an operator
clears the trip or after the cool-down. A successful run ends probation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from infrastructure.events import PrecisionName, Role
from infrastructure.events.event import RungSearched
from infrastructure.events.plain_text import plain
from infrastructure.events.precision_state import ModuleNames, PartPrecisions
from infrastructure.options.setting_types import AgentNames, Hot, Seconds

GUARD = "guard"  # the actor of decisions that no operator made
HISTORY_LIMIT = 64  # windows, comparisons or pairs of runs that the guard looks back on
_PER_MILLE = 1000  # canary shares are whole numbers of these, so that 0.1 of 30 runs is exactly 3

_Share: TypeAlias = Annotated[float, Field(gt=0, le=1)]
_Drift: TypeAlias = Annotated[float, Field(gt=0, le=1000)]
_Count: TypeAlias = Annotated[int, Field(ge=1, le=1_000_000)]
_Few: TypeAlias = Annotated[int, Field(ge=1, le=HISTORY_LIMIT)]


class Trigger(StrEnum):
    """Why the guard takes an agent, or roles of it, to another precision."""

    OVERFLOW_STORM = "overflow_storm"  # too many overflows in one window
    OVERFLOW_SUSTAINED = "overflow_sustained"  # many, over several windows
    SCALE_FLOOR = "scale_floor"  # overflows although the loss scale cannot fall further
    NONFINITE_LOSS = "nonfinite_loss"  # losses in a row that are not finite
    LOSS_DRIFT = "loss_drift"  # the half loss of a frozen batch differs from the FP32 one
    METRIC_DRIFT = "metric_drift"  # the held-out metric is worse than in paired FP32 runs
    SLOWER_THAN_FP32 = "slower_than_fp32"  # on accelerators
    UNDERFLOW = "underflow"  # gradients vanish in half precision
    MISMATCH = "mismatch"  # trainer and rollout disagree because of rounding


class GuardState(StrEnum):
    """How far the guard trusts an agent with half precision."""

    WATCHING = "watching"  # half precision is allowed
    TRIPPED = "tripped"  # FP32 until the cool-down is over or an operator clears it
    PROBATION = "probation"  # half precision on trial: a relapse doubles the cool-down


Rung = Literal["half", "modules", "parts", "roles", "fp32"]  # of the ladder of precision, upwards


class GuardSettings(BaseModel):
    """Settings of automatic rollback and canaries, which `Settings` inherits."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    guard_enabled: Hot[bool] = True
    """Whether the guard may move an agent to FP32 on its own."""
    guard_reenable: Hot[Literal["manual", "auto"]] = "manual"
    """How half precision returns after a trip: manual (precision clear --guard) or auto."""
    guard_cooldown_seconds: Hot[Seconds] = 3600.0
    """Cool-down: seconds in FP32 before auto tries half precision; each relapse doubles it."""
    guard_cooldown_limit_seconds: Hot[Seconds] = 86400.0
    """Longest cool-down in seconds; after this long without a trip the doubling starts over."""
    guard_window_steps: Hot[_Count] = 100
    """Number of half-precision steps in a window; each window's share of overflows is checked."""
    guard_storm_ratio: Hot[_Share] = 0.3
    """overflow_storm: trips if more than this share of a window's steps overflows."""
    guard_sustained_ratio: Hot[_Share] = 0.1
    """overflow_sustained: trips if at least this share overflows in consecutive windows."""
    guard_sustained_windows: Hot[_Few] = 5
    """overflow_sustained: number of consecutive windows; on probation one is enough."""
    guard_nonfinite_losses: Hot[_Count] = 25
    """nonfinite_loss: trips after this many consecutive losses that are not finite."""
    guard_comparisons: Hot[_Few] = 3
    """loss_drift, underflow, slower_than_fp32: number of comparisons with FP32 before a trip."""
    guard_loss_drift: Hot[_Drift] = 0.05
    """loss_drift: trips if a frozen batch's loss differs from FP32's by more than this share."""
    guard_underflow: Hot[_Share] = 0.2
    """underflow: trips if more than this share of the gradient is zero and its error is large."""
    guard_min_speedup: Hot[Annotated[float, Field(ge=0, le=100)]] = 0.95
    """slower_than_fp32: trips if FP32's step time over half precision's is below this, on GPUs."""
    guard_mismatch_kl: Hot[_Drift] = 0.001
    """mismatch: trips if trainer and rollout differ by more nats per token, by rounding alone."""
    guard_mismatch_samples: Hot[_Few] = 3
    """mismatch: number of samples in a row before a trip; on probation one is enough."""
    guard_metric_drift: Hot[_Drift] = 0.01
    """metric_drift: trips if the held-out metric is worse than in FP32 by more than this share."""
    guard_pairs: Hot[Annotated[int, Field(ge=2, le=HISTORY_LIMIT)]] = 3
    """metric_drift: fewest pairs of a half-precision run and its FP32 repetition to compare."""
    guard_ladder: Hot[bool] = True
    """Whether, after a trip, a smaller change may replace FP32, once a search has shown it."""
    guard_search_seconds: Hot[Seconds] = 300.0
    """Time of one search for that change, in a process beside the training that goes on."""
    model_guard_enabled: Hot[bool] = True
    """Whether a model whose predictions no longer hold is replaced by the version before."""
    model_guard_window: Hot[Annotated[int, Field(ge=5, le=10_000)]] = 25
    """Number of outcomes in a window of the guard for models."""
    model_guard_skill_loss: Hot[_Share] = 0.2
    """Smallest share of its held-out skill that a model must have lost to be taken back."""
    model_guard_false_alarm_outcomes: Hot[Annotated[int, Field(ge=1_000, le=10**12)]] = 500_000
    """Mean number of outcomes, at least, in which a model that holds is taken back by mistake."""
    model_guard_input_drift: Hot[Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)]] = 0.5
    """Shift of an input, in standard deviations, from which half the evidence suffices."""
    canary_share: Hot[Annotated[float, Field(ge=0, le=1)]] = 1.0
    """Share of each agent's runs that may use half precision; the others run in FP32."""
    canary_agents: Hot[AgentNames] = ""
    """Agents that may use half precision, separated by commas; empty: all."""

    @property
    def canaries(self) -> tuple[str, ...]:
        """`canary_agents` one by one."""
        return tuple(name.strip() for name in self.canary_agents.split(",") if name.strip())


def is_canary(agent: str, number: int, settings: GuardSettings) -> bool:
    """Whether run *number* of *agent* belongs to the share that may have half precision.

    The number, from 1, is among the agent's runs; the same one always has the same answer. The
    first run of a share is a canary, and canaries are spread evenly: 0.25 takes runs 1, 5, 9.
    """
    if settings.canaries and agent not in settings.canaries:
        return False
    share = round(settings.canary_share * _PER_MILLE)

    def canaries_among_first(runs: int) -> int:
        return -(-runs * share // _PER_MILLE)  # rounded up

    return canaries_among_first(number) > canaries_among_first(number - 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Detection:
    """A trigger whose condition was met.

    Attributes:
        summary: One sentence with the numbers.
        numbers: The numbers, for the evidence.
        roles: Roles whose precision is to change, with the new one; empty for FP32 in all.
    """

    trigger: Trigger
    summary: str
    numbers: Mapping[str, object]
    roles: Mapping[Role, PrecisionName] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPair:
    """A run in half precision and its repetition in FP32.

    Attributes:
        half_run, fp32_run: Identities of the runs.
        metric: Name of the primary metric.
        half, fp32: Values of the metric on the same held-out data.
        higher_is_better: Direction of the metric.
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
            return math.copysign(math.inf, self._loss) if self._loss else 0.0
        return self._loss / abs(self.fp32)

    @property
    def worse_share(self) -> float:
        """The same as a share of the larger of both values: at most 2, even beside zero."""
        if not math.isfinite(self.half):
            return 1.0
        return self._loss / (max(abs(self.half), abs(self.fp32)) or 1.0)

    @property
    def _loss(self) -> float:
        return self.fp32 - self.half if self.higher_is_better else self.half - self.fp32


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The guard's state for an agent from one moment on.

    Attributes:
        at: Unix time in seconds; 0 if the guard has never decided anything.
        trigger: Trigger of the last trip; None if there was none.
        level: Trips in a row, which lengthen the cool-down; 0 before the first.
        until: Unix time at which the cool-down ends; None unless tripped.
        run_id, step: Run and step of the decision; empty and None if it concerns no run.
        actor: ``guard`` or an operator.
        reason: Why, in one sentence.
        evidence: File below the home folder that holds the numbers; empty if there is none.
        roles: Roles that a trip changes to another precision; the others keep
            theirs; empty if the trip demands FP32, and in other states.
        modules: Modules in FP32 while the others may have half precision: what remains of a trip
            after a search has shown that this suffices. Empty before, and in other states.
        parts: Parts of the job in FP32 or the other half type, likewise.
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
    roles: Mapping[Role, PrecisionName] = field(default_factory=dict, hash=False)
    modules: ModuleNames = ()
    parts: PartPrecisions = field(default_factory=dict, hash=False)

    @property
    def demands_fp32(self) -> bool:
        """Whether it demands FP32 for all roles and modules."""
        return self.rung == "fp32"

    @property
    def descended(self) -> bool:
        """Whether a search has shown that something smaller than FP32 suffices after the trip."""
        by_search = {Role.WORLD_MODEL, Role.REFERENCE}  # a mismatch changes others alone
        return bool(self.modules or self.parts or by_search & self.roles.keys())

    @property
    def tripped(self) -> bool:
        """Whether it is a trip, and not what has followed it while FP32 stays."""
        return self.state is GuardState.TRIPPED and not self.descended and self.step is not None

    @property
    def returned_at(self) -> float:
        """Unix time at which half precision returned after a trip; 0 if it did not."""
        tries = self.state is GuardState.PROBATION
        return self.at if self.descended or tries else 0.0

    @property
    def rung(self) -> Rung:
        """How much of the agent's job it takes out of its half precision."""
        if self.state is not GuardState.TRIPPED:
            return "half"
        if self.roles:
            return "roles"
        if self.parts:
            return "parts"
        return "modules" if self.modules else "fp32"


def trip(
    last: Decision,
    detection: Detection,
    settings: GuardSettings,
    *,
    now: float,
    run_id: str,
    step: int,
) -> Decision | None:
    """Demand what *detection* asks for; None if FP32 is in force already or the guard is off.

    A relapse doubles the cool-down: a trip on probation, or within
    `GuardSettings.guard_cooldown_limit_seconds` of its end. If single roles were changed, or
    modules raised, and something is detected all the same, that is a relapse too, and the trip
    demands FP32.
    """
    if last.demands_fp32 or not settings.guard_enabled:
        return None
    longest = settings.guard_cooldown_limit_seconds
    relapse = last.state is not GuardState.WATCHING or now - last.at < longest
    level = last.level + 1 if relapse else 1
    cooldown = min(longest, settings.guard_cooldown_seconds * 2.0 ** min(level - 1, 32))
    return Decision(
        agent=last.agent,
        state=GuardState.TRIPPED,
        at=now,
        trigger=detection.trigger,
        level=level,
        until=now + cooldown,
        run_id=run_id,
        step=step,
        reason=detection.summary,
        roles={} if last.state is GuardState.TRIPPED else detection.roles,
    )


def descend(
    last: Decision, found: RungSearched, settings: GuardSettings, *, now: float, run_id: str
) -> Decision | None:
    """Go down from FP32 to the rung that a search has *found* to suffice; None if FP32 must stay.

    It is the modules found, or the parts, or a role, else the other half type. Where only the loss
    scale was wrong, half precision returns on probation: the scale moves by itself.
    """
    if not (settings.guard_enabled and last.demands_fp32):
        return None
    if found.cause == "scale":
        return _follow(last, GuardState.PROBATION, now=now, run_id=run_id, reason=found.reason)
    roles = dict(found.roles)
    if found.half_type is not None:
        roles = {Role.WORLD_MODEL: found.half_type, **roles}
    if not (found.modules or found.parts or roles):
        return None
    return replace(
        last,
        at=now,
        run_id=run_id,
        step=found.step,
        actor=GUARD,
        reason=found.reason,
        evidence="",
        modules=found.modules,
        parts=found.parts,
        roles={} if found.modules or found.parts else roles,
    )


def refuse(
    last: Decision, rung: Sequence[str], *, why: str, now: float, run_id: str
) -> Decision | None:
    """Keep FP32 in all although a search has found *rung*; None if that stands there already."""
    reason = f"{', '.join(rung)} was found once more, but {why}"
    if not last.demands_fp32 or last.reason == reason:
        return None
    return replace(last, at=now, run_id=run_id, step=None, actor=GUARD, reason=reason, evidence="")


def climb(last: Decision, names: str, *, why: str, now: float, run_id: str) -> Decision | None:
    """Demand FP32 in all, as the worker computes since it could not raise modules or parts.

    None unless *names*, joined by ``", "``, are among those raised. The cool-down stays as it was.
    """
    raised = {plain(name) for name in (*last.modules, *last.parts)}
    if last.rung not in ("modules", "parts") or not raised.issuperset(names.split(", ")):
        return None
    return replace(
        last,
        at=now,
        run_id=run_id,
        step=None,
        actor=GUARD,
        reason=why,
        evidence="",
        modules=(),
        parts={},
    )


def step_down(
    last: Decision, settings: GuardSettings, *, now: float, run_id: str, step: int, half_steps: int
) -> Decision | None:
    """Try half precision everywhere, one rung below modules, parts or roles, in a run under way.

    None unless `GuardSettings.guard_reenable` is auto, the cool-down is over, and nothing was found
    in a window of *half_steps* on this rung. A trip then leads back to FP32, and up to the rung.
    """
    if last.rung in ("half", "fp32") or settings.guard_reenable != "auto":
        return None
    if now < (last.until or now) or half_steps < settings.guard_window_steps:
        return None
    reason = f"{half_steps} half-precision steps without a fault: tries one rung further down"
    return replace(
        _follow(last, GuardState.PROBATION, now=now, run_id=run_id, reason=reason), step=step
    )


def start_probation(
    last: Decision, settings: GuardSettings, *, now: float, run_id: str
) -> Decision | None:
    """Let the run that begins have half precision on probation, if the cool-down is over.

    None if it is not, if nothing tripped, or if only an operator may decide it.
    """
    if last.state is not GuardState.TRIPPED or settings.guard_reenable != "auto":
        return None
    if now < (last.until or now) or run_id == last.run_id:
        return None
    reason = "the cool-down is over: this run tries half precision again"
    return _follow(last, GuardState.PROBATION, now=now, run_id=run_id, reason=reason)


def clear_trip(last: Decision, *, now: float, actor: str, reason: str) -> Decision | None:
    """Start a probation because an operator asks for it; None if nothing tripped."""
    if last.state is not GuardState.TRIPPED:
        return None
    return _follow(last, GuardState.PROBATION, now=now, actor=actor, reason=reason)


def end_probation(
    last: Decision, settings: GuardSettings, *, now: float, run_id: str, half_steps: int
) -> Decision | None:
    """End the probation after a successful run; None without probation or with too few steps.

    A window is enough for the *half_steps*, in half precision since the probation began.
    """
    if last.state is not GuardState.PROBATION or half_steps < settings.guard_window_steps:
        return None
    reason = f"the run succeeded, and nothing was found in {half_steps} half-precision steps"
    return _follow(last, GuardState.WATCHING, now=now, run_id=run_id, reason=reason)


def _follow(
    last: Decision,
    state: GuardState,
    *,
    now: float,
    reason: str,
    run_id: str = "",
    actor: str = GUARD,
) -> Decision:
    """*state* after *last*, with the trigger and the level of its trip."""
    return replace(
        last,
        state=state,
        at=now,
        until=None,
        run_id=run_id,
        step=None,
        actor=actor,
        reason=reason,
        evidence="",
        roles={},
        modules=(),
        parts={},
    )
