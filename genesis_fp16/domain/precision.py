"""Who may say what about precision: any voice for FP32 wins, and the deciding one is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import StringConstraints

from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionReason, PrecisionWish


def is_agent_name(value: object) -> bool:
    """Whether *value* could be an agent's name."""
    return isinstance(value, str) and AGENT_NAME.fullmatch(value) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """An operator's stored word on precision.

    Attributes:
        agent: Whom it concerns; None for all.
        precision: What the operator demands.
        reason, actor: Why, and who.
        created_at, expires_at: Unix time in seconds; None for no expiry.
        next_run: Whether runs that have begun before it are left as they are.
    """

    agent: Annotated[str, StringConstraints(pattern=f"^{AGENT_NAME.pattern}$")] | None
    precision: PrecisionWish
    reason: str
    actor: str
    created_at: float
    expires_at: float | None = None
    next_run: bool = False

    def concerns(self, agent: str, begun_at: float) -> bool:
        """Whether it speaks to a run of *agent* that began at the Unix time *begun_at*."""
        too_early = self.next_run and begun_at < self.created_at
        return self.agent in (None, agent) and not too_early


def concerning(overrides: Sequence[Override], agent: str, begun_at: float) -> list[Override]:
    """The newest word of each scope to a run of *agent*.

    Args:
        overrides: In force, the oldest first.
        agent: Whose run.
        begun_at: Unix time at which it began.
    """
    heard = [override for override in overrides if override.concerns(agent, begun_at)]
    return list({override.agent: override for override in heard}.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What the device can do, as the policy needs to know it.

    Attributes:
        accelerator: False for a CPU.
        fp16, bf16: Half types that it computes natively.
        cpu_half: Whether half precision may run on a CPU all the same.
    """

    accelerator: bool
    fp16: bool
    bf16: bool
    cpu_half: bool = False

    def objection(self, half: PrecisionWish) -> PrecisionReason | None:
        """Why the device demands FP32 instead of *half*, or None."""
        if half == "auto":
            return None  # what is measured on a device, it can do
        if not self.accelerator:
            return None if self.cpu_half else "no_accelerator"
        able = self.fp16 if half == "fp16" else self.bf16
        return None if able else "unsupported"


@dataclass(frozen=True, kw_only=True, slots=True)
class Voices:
    """Everyone who has a say on the precision of one run.

    Attributes:
        flag: Whether half precision is allowed at all.
        default: ``GENESIS_PRECISION``.
        agent: The agent's own setting, if any.
        overrides: Those that concern the run, one per scope at most.
        guard: Whether the guard demands FP32.
        fell_back_at: Unix time at which the run's worker fell back to FP32 by itself, at the floor
            of the loss scale; None if it did not.
        canary: Whether the run is of the share that may have half precision.
        baseline: Whether the run is there to repeat another in FP32.
        device: What it can do.
    """

    flag: bool
    default: PrecisionWish
    agent: PrecisionWish | None
    overrides: Sequence[Override]
    device: Device
    guard: bool = False
    fell_back_at: float | None = None
    canary: bool = True
    baseline: bool = False


def decide(voices: Voices) -> PrecisionState:
    """Decide the precision of one run.

    FP32 is demanded by, in this order of naming: ``flag`` (``ENABLE_FP16_TRAINING``),
    ``operator`` (an override), ``guard``, ``floor_policy`` (the worker's own fallback), ``agent``
    (its own setting), the device (``no_accelerator`` or ``unsupported``), ``baseline`` and
    ``canary`` (the run is there to be compared with others, and has nothing else against half
    precision). If none does, the half type, or ``auto``, is the operator's (for this agent before
    for all), else the agent's, else the default.

    A fallback of the worker holds until its run ends. An override for this agent by name that
    asks for half precision and is newer than the fallback suspends it while it is in force.
    """
    half, chooser = _choice(voices)
    for reason in _demands(voices, voices.device.objection(half)):
        return PrecisionState(requested=half, effective="fp32", reason=reason)
    return PrecisionState(requested=half, effective=half, reason=chooser)


def _choice(voices: Voices) -> tuple[PrecisionWish, PrecisionReason]:
    """The half type that would run if nobody demanded FP32, and who chose it."""
    for override in sorted(voices.overrides, key=lambda override: override.agent is None):
        if override.precision != "fp32":
            return override.precision, "operator"
    if voices.agent is not None and voices.agent != "fp32":
        return voices.agent, "agent"
    return voices.default, "default"


def _demands(voices: Voices, objection: PrecisionReason | None) -> Iterator[PrecisionReason]:
    if not voices.flag:
        yield "flag"
    if any(override.precision == "fp32" for override in voices.overrides):
        yield "operator"
    if voices.guard:
        yield "guard"
    if _fallback_holds(voices):
        yield "floor_policy"
    if voices.agent == "fp32":
        yield "agent"
    if objection is not None:
        yield objection
    if voices.baseline:
        yield "baseline"
    if not voices.canary:
        yield "canary"


def _fallback_holds(voices: Voices) -> bool:
    """Whether the worker fell back and no operator has asked for half precision since."""
    fell_back_at = voices.fell_back_at
    return fell_back_at is not None and not any(
        override.agent is not None
        and override.precision != "fp32"
        and override.created_at > fell_back_at
        for override in voices.overrides
    )
