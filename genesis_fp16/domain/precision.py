"""The rule that decides a run's precision: any demand for FP32 wins; the reason names it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import StringConstraints

from infrastructure.agent_contract.agent import AGENT_NAME
from infrastructure.events import PrecisionName, PrecisionState, Role
from infrastructure.events.precision_state import (
    PrecisionReason,
    PrecisionWish,
    fp32_reason_of_device,
)
from infrastructure.events.role_precision import TRAINED, RolePrecisions, roles_under

DECIDED_BY: Mapping[str, str] = {  # reason to who that is
    "default": "nobody demands FP32, and GENESIS_PRECISION chose it",
    "agent": "the agent: its setting GENESIS_AGENTS__<NAME>__PRECISION or ROLE_PRECISION, or the "
    "preset of its job",
    "operator": "an override by an operator",
    "flag": "ENABLE_FP16_TRAINING is false",
    "guard": "the guard",
    "floor_policy": "the worker itself, by FP16_FLOOR_POLICY: gradients overflowed at the floor",
    "canary": "the canary settings: this run is not in the share that may use half precision",
    "baseline": "the run repeats another one in FP32, for comparison",
    "device_unknown": "the daemon has just started and does not know the device yet",
    "no_accelerator": "the device is a CPU, and GENESIS_CPU_HALF is not set",
    "unsupported": "the device lacks this half type",
    "measured": "the worker measured it as best: see genesis-fp16 preflight",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Override:
    """A precision that an operator has set, as stored.

    Attributes:
        agent: Agent whose runs it applies to; None for all agents.
        precision: Precision that the operator asks for.
        reason, actor: Why it was set, and by whom.
        created_at, expires_at: Unix time in seconds; None for no expiry.
        next_run: Whether runs that began before it keep the precision they have.
    """

    agent: Annotated[str, StringConstraints(pattern=f"^{AGENT_NAME.pattern}$")] | None
    precision: PrecisionWish
    reason: str
    actor: str
    created_at: float
    expires_at: float | None = None
    next_run: bool = False

    def applies_to(self, agent: str, began_at: float) -> bool:
        """Whether it applies to a run of *agent* that began at the Unix time *began_at*."""
        too_early = self.next_run and began_at < self.created_at
        return self.agent in (None, agent) and not too_early


def applicable_overrides(
    overrides: Sequence[Override], agent: str, began_at: float
) -> list[Override]:
    """The newest override of each scope that applies to a run of *agent*.

    The *overrides* in force are ordered with the oldest first; *began_at* is in Unix seconds.
    """
    applicable = [override for override in overrides if override.applies_to(agent, began_at)]
    return list({override.agent: override for override in applicable}.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """What the device can compute.

    Attributes:
        name: As torch names it.
        accelerator: False for a CPU.
        fp16, bf16: Whether the device computes this half type natively.
        cpu_half: Whether half precision may run on a CPU although it is emulated.
    """

    accelerator: bool
    fp16: bool
    bf16: bool
    cpu_half: bool = False
    name: str = ""

    def fp32_reason(self, half: PrecisionWish) -> PrecisionReason | None:
        """Reason the device demands FP32 instead of *half*, or None."""
        return fp32_reason_of_device(
            half,
            accelerator=self.accelerator,
            native={"fp16": self.fp16, "bf16": self.bf16},
            cpu_half=self.cpu_half,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionInputs:
    """Everything that decides the precision of one run.

    Attributes:
        flag: Whether half precision is allowed at all.
        default: ``GENESIS_PRECISION``.
        agent: The agent's own setting, if any.
        overrides: Overrides that apply to the run, one per scope at most.
        device: What the device can compute; None until that is known.
        preset: The operator's choice of precisions by role for the agent, if any.
        guard: Whether the guard demands FP32.
        guard_roles: Single roles whose precision the guard changes, with the new one.
        guard_modules: Modules that the guard raises to FP32 while the others have a half type.
        guard_parts: Parts of the job that the guard gives another precision, with the new one.
        guard_decided_at: Unix time at which the guard let half precision return, after a search or
            on probation; 0 if it has not.
        fell_back_at: Unix time at which the run's worker fell back to FP32 by itself, at the floor
            of the loss scale; None if it did not.
        canary: Whether the run belongs to the share that may have half precision.
        baseline: Whether the run repeats another in FP32.
    """

    flag: bool
    default: PrecisionWish
    agent: PrecisionWish | None
    overrides: Sequence[Override]
    device: Device | None
    preset: RolePrecisions | None = None
    guard: bool = False
    guard_roles: Mapping[Role, PrecisionName] = field(default_factory=dict)
    guard_modules: tuple[str, ...] = ()
    guard_parts: Mapping[str, PrecisionName] = field(default_factory=dict)
    guard_decided_at: float = 0.0
    fell_back_at: float | None = None
    canary: bool = True
    baseline: bool = False

    @property
    def agent_demands_fp32(self) -> bool:
        """Whether the agent's own setting, or its preset, is FP32."""
        return self.agent == "fp32" or (self.preset is not None and self.preset.half is None)


def resolve_precision(inputs: PrecisionInputs) -> PrecisionState:
    """Decide the precision of one run.

    FP32 is demanded by, in the order in which one is named: ``flag`` (``ENABLE_FP16_TRAINING``),
    ``operator`` (an override), ``guard``, ``floor_policy`` (the worker's own fallback), ``agent``
    (its own setting or preset), the device (``device_unknown``, ``no_accelerator`` or
    ``unsupported``), ``baseline`` and ``canary``: these two runs serve a comparison and are named
    last. If none demands it, the half type, or ``auto``, is the operator's (for this agent before
    for all), else the agent's, else the default.

    The guard may raise single modules to FP32, where nobody demands it for all. It may change
    single roles and parts: to FP32, or to the other half type if the device has it and
    the default chose the half type, or if operator or agent have chosen the same since; otherwise
    FP32 takes its place. If such a role is the policy or the world model, the whole run follows it,
    because its precision is the run's.

    A fallback of the worker holds until its run ends. An override for this agent by name that
    asks for half precision and is newer than the fallback suspends it while it is in force, and so
    does the guard that has gone down a rung since, or whose trip an operator has cleared.
    """
    half, chosen_by = _half_type(inputs)
    by_guard = _guard_roles(inputs, half, chosen_by)
    for reason in _fp32_reasons(inputs, half, by_guard):
        return PrecisionState(requested=half, effective="fp32", reason=reason)
    effective = _of_run(by_guard) or half
    return PrecisionState(
        requested=half,
        effective=effective,
        reason=chosen_by if effective == half else "guard",
        roles=_roles(inputs.preset, effective, by_guard),
        modules=inputs.guard_modules,
        parts=_parts(inputs, effective, chosen_by),
    )


def demands(inputs: PrecisionInputs) -> list[tuple[PrecisionReason, PrecisionWish]]:
    """Who demands what: those for FP32, in the order in which one is named, then the half type's.

    The first is the reason of `resolve_precision`, unless the guard decides by a role.
    """
    half, chosen_by = _half_type(inputs)
    by_guard = _guard_roles(inputs, half, chosen_by)
    demanded: list[tuple[PrecisionReason, PrecisionWish]] = []
    demanded += [(reason, "fp32") for reason in _fp32_reasons(inputs, half, by_guard)]
    return [*demanded, (chosen_by, half)]


def _half_type(inputs: PrecisionInputs) -> tuple[PrecisionWish, PrecisionReason]:
    """The half type that runs if nobody demands FP32, and who chose it."""
    for override in sorted(inputs.overrides, key=lambda override: override.agent is None):
        if override.precision != "fp32":
            return override.precision, "operator"
    if inputs.agent is not None and inputs.agent != "fp32":
        return inputs.agent, "agent"
    if inputs.preset is not None and inputs.preset.half is not None:
        return inputs.preset.half, "agent"
    return inputs.default, "default"


def _guard_roles(
    inputs: PrecisionInputs, half: PrecisionWish, chosen_by: PrecisionReason
) -> dict[Role, PrecisionName]:
    """The guard's changes of single roles that it may make, FP32 in place of the others."""
    chosen = PrecisionState(requested=half, effective=half, reason=chosen_by)
    precisions: dict[Role, PrecisionName] = {}
    for role, precision in inputs.guard_roles.items():
        lacking = inputs.device is None or inputs.device.fp32_reason(precision) is not None
        agreed = half != "auto" and roles_under(chosen, inputs.preset)[role].compute == precision
        allowed = not lacking and (chosen_by == "default" or agreed)
        precisions[role] = precision if allowed else "fp32"
    return precisions


def _parts(
    inputs: PrecisionInputs, effective: PrecisionWish, chosen_by: PrecisionReason
) -> dict[str, PrecisionName]:
    """The guard's precisions of single parts that differ from the run's, FP32 where it may not."""

    def allowed(name: PrecisionName) -> bool:
        lacking = inputs.device is None or inputs.device.fp32_reason(name) is not None
        return name == "fp32" or (chosen_by == "default" and not lacking)

    changed = ((part, name) for part, name in inputs.guard_parts.items() if name != effective)
    return {part: name if allowed(name) else "fp32" for part, name in changed}


def _of_run(by_guard: Mapping[Role, PrecisionName]) -> PrecisionName | None:
    """The guard's precision of the role whose precision is the run's; None if it keeps its own."""
    return by_guard.get(Role.POLICY) or by_guard.get(Role.WORLD_MODEL)


def _roles(
    preset: RolePrecisions | None, effective: PrecisionWish, by_guard: Mapping[Role, PrecisionName]
) -> dict[Role, str]:
    """Types of the roles that are decided here.

    Under ``auto`` they are the preset's own; the worker replaces its half type by the measured one.
    """
    precisions: dict[Role, str] = {}
    if preset is not None and effective != "fp32":
        if effective != "auto":
            preset = preset if preset.half == effective else preset.in_half(effective)
        precisions = {role: str(precision) for role, precision in preset.items()}
    for role, precision in by_guard.items():
        store = "fp32" if role in TRAINED else precision
        precisions[role] = f"{store}/{precision}/fp32"
    return precisions


def _fp32_reasons(
    inputs: PrecisionInputs, half: PrecisionWish, by_guard: Mapping[Role, PrecisionName]
) -> Iterator[PrecisionReason]:
    if not inputs.flag:
        yield "flag"
    if any(override.precision == "fp32" for override in inputs.overrides):
        yield "operator"
    if inputs.guard or _of_run(by_guard) == "fp32":
        yield "guard"
    if _fallback_holds(inputs):
        yield "floor_policy"
    if inputs.agent_demands_fp32:
        yield "agent"
    if inputs.device is None:
        yield "device_unknown"
    elif (reason := inputs.device.fp32_reason(half)) is not None:
        yield reason
    if inputs.baseline:
        yield "baseline"
    if not inputs.canary:
        yield "canary"


def _fallback_holds(inputs: PrecisionInputs) -> bool:
    """Whether the worker fell back and neither operator nor guard has found a remedy since."""
    fell_back_at = inputs.fell_back_at
    if fell_back_at is None or inputs.guard_decided_at > fell_back_at:
        return False
    return not any(
        override.agent is not None
        and override.precision != "fp32"
        and override.created_at > fell_back_at
        for override in inputs.overrides
    )
