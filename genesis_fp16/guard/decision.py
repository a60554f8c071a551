"""A decision of the guard, and the ladder on which one follows another. Pure.

``watching -> tripped -> probation -> watching``: a trip demands FP32; half precision comes back
on probation, by an operator's word or after the cool-down; a run that proves itself ends that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from genesis_fp16.guard.finding import Finding
from genesis_fp16.guard.guard_settings import GuardSettings
from genesis_fp16.guard.trigger import GuardState, Trigger

GUARD = "guard"  # the actor of what nobody ordered


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
