"""Who may say what about precision: any voice for FP32 wins, and the deciding one is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PrecisionReason, PrecisionWish


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """An operator's stored word on precision.

    Attributes:
        agent: Whom it concerns; None for all.
        precision: What the operator demands.
        reason, actor: Why, and who.
        created_at, expires_at: Unix time in seconds; None for no expiry.
    """

    agent: str | None
    precision: PrecisionWish
    reason: str
    actor: str
    created_at: float
    expires_at: float | None = None


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


def decide(
    *,
    flag: bool,
    default: PrecisionWish,
    agent: PrecisionWish | None,
    overrides: Sequence[Override],
    device: Device,
) -> PrecisionState:
    """Decide the precision of one agent's runs.

    FP32 is demanded by, in this order of naming: ``flag`` (``ENABLE_FP16_TRAINING``),
    ``operator`` (an override), ``agent`` (its own setting), the device (``no_accelerator`` or
    ``unsupported``). If none does, the half type, or ``auto``, is the operator's (for this agent
    before for all), else the agent's, else the default.

    Args:
        flag: Whether half precision is allowed at all.
        default: ``GENESIS_PRECISION``.
        agent: The agent's own setting, if any.
        overrides: Those in force for this agent.
        device: What it can do.
    """
    half, chooser = _choice(default, agent, overrides)
    for reason in _demands(flag, agent, overrides, device.objection(half)):
        return PrecisionState(requested=half, effective="fp32", reason=reason)
    return PrecisionState(requested=half, effective=half, reason=chooser)


def _choice(
    default: PrecisionWish, agent: PrecisionWish | None, overrides: Sequence[Override]
) -> tuple[PrecisionWish, PrecisionReason]:
    """The half type that would run if nobody demanded FP32, and who chose it."""
    for override in sorted(overrides, key=lambda override: override.agent is None):
        if override.precision != "fp32":
            return override.precision, "operator"
    if agent is not None and agent != "fp32":
        return agent, "agent"
    return default, "default"


def _demands(
    flag: bool,
    agent: PrecisionWish | None,
    overrides: Sequence[Override],
    objection: PrecisionReason | None,
) -> Iterator[PrecisionReason]:
    if not flag:
        yield "flag"
    if any(override.precision == "fp32" for override in overrides):
        yield "operator"
    if agent == "fp32":
        yield "agent"
    if objection is not None:
        yield objection
