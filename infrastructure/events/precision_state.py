"""Precision as a value: what was asked for, what runs, and the reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Literal, TypeAlias, get_args

from pydantic import Field, StringConstraints

from infrastructure.events.plain_text import PlainText

PrecisionName = Literal["fp32", "fp16", "bf16"]
PrecisionWish = Literal["fp32", "fp16", "bf16", "auto"]  # auto: the worker measures which is best
PrecisionReason = Literal[
    "default",  # GENESIS_PRECISION
    "agent",  # the agent's own setting
    "operator",  # a stored override
    "flag",  # ENABLE_FP16_TRAINING is false
    "guard",  # the daemon's automatic rollback
    "floor_policy",  # the worker's own fallback: FP16_FLOOR_POLICY=fallback_fp32
    "baseline",  # the run repeats another in FP32
    "canary",  # the run is outside the share that may have half precision
    "device_unknown",  # the daemon has just started and is asking torch about the device
    "no_accelerator",  # the device is a CPU, and GENESIS_CPU_HALF is not set
    "unsupported",  # the device lacks the half type
    "measured",  # auto was asked for, and a pre-flight measurement decided
]
PRECISIONS: tuple[PrecisionName, ...] = get_args(PrecisionName)
WISHES: tuple[PrecisionWish, ...] = get_args(PrecisionWish)
REASONS: tuple[PrecisionReason, ...] = get_args(PrecisionReason)
_ONE_OF = f"({'|'.join(PRECISIONS)})"
RoleTypes: TypeAlias = Annotated[
    str, StringConstraints(pattern=rf"^{_ONE_OF}/{_ONE_OF}/{_ONE_OF}$")
]  # a `RolePrecision` as text


MOST_MODULES = 64  # raised at a time; with more, FP32 for all is the smaller change
ModuleNames: TypeAlias = Annotated[tuple[PlainText, ...], Field(max_length=MOST_MODULES)]

PartPrecisions: TypeAlias = Annotated[
    Mapping[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9-]{0,31}$")], PrecisionName],
    Field(max_length=8),
]  # by the name of a part; a job has no more


class Role(StrEnum):
    """What a model or a computation of a job is for. A label of metrics."""

    WORLD_MODEL = "world_model"
    POLICY = "policy"
    REFERENCE = "reference"  # the frozen policy that the trained one must stay close to
    ROLLOUT = "rollout"  # the copy of the policy that generates text
    REWARD = "reward"
    VALUE = "value"
    KL = "kl"  # divergence from the reference, and FlowRL's log Z
    ADVANTAGE = "advantage"


@dataclass(frozen=True, kw_only=True, slots=True)
class PrecisionState:
    """A decision on precision, or a worker's acknowledgement of one.

    Attributes:
        requested: Precision that would run if nothing demanded FP32.
        effective: Precision that runs. In an event: what the worker has acknowledged. In a
            decision ``auto`` leaves the choice to the worker's measurement.
        reason: What decided.
        roles: Types of single roles, ``store/compute/out``. In a decision: those that the
            operator or the guard has chosen; the job chooses the others. In an acknowledgement:
            all roles of the job; empty for a job without roles. If *effective* is FP32, all are.
        modules: Qualified names of the modules that the guard has raised to FP32, each with the
            modules inside it, while the others compute in the half type. Those that the job itself
            keeps in FP32 are not among them. Empty if *effective* is FP32.
        parts: Parts of the job that the guard has given another precision, FP32 or the other half
            type, in all of their steps. Empty if *effective* is FP32.
    """

    requested: PrecisionWish
    effective: PrecisionWish
    reason: PrecisionReason
    roles: Mapping[Role, RoleTypes] = field(default_factory=dict, hash=False)
    modules: ModuleNames = ()
    parts: PartPrecisions = field(default_factory=dict, hash=False)

    @property
    def fields(self) -> dict[str, str]:
        """The state as text by name, for logs and the store.

        ``roles``, ``modules`` and ``parts`` are left out if there are none.
        """
        shown: dict[str, str] = {
            "requested": self.requested,
            "effective": self.effective,
            "reason": self.reason,
        }
        if self.roles:
            shown["roles"] = describe_roles(self.roles)
        if self.modules:
            shown["modules"] = ",".join(self.modules)
        if self.parts:
            shown["parts"] = ",".join(f"{part}:{name}" for part, name in self.parts.items())
        return shown

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self.fields.items())


def describe_roles(roles: Mapping[Role, RoleTypes] | Mapping[str, str]) -> str:
    """*roles* in one line: ``policy:fp32/fp16/fp32,rollout:fp16/fp16/fp32``."""
    return ",".join(f"{role}:{types}" for role, types in roles.items())


def fp32_reason_of_device(
    half: PrecisionWish, *, accelerator: bool, native: Mapping[str, bool], cpu_half: bool
) -> PrecisionReason | None:
    """Reason a device demands FP32 instead of *half*, or None.

    Args:
        half: The precision that would run; FP32 is allowed everywhere, and ``auto`` chooses only
            what was measured on the device.
        accelerator: False for a CPU.
        native: Whether the device computes each half type natively, by name.
        cpu_half: Whether half precision may run on a CPU anyway.
    """
    if half in {"fp32", "auto"}:
        return None
    if not accelerator:
        return None if cpu_half else "no_accelerator"
    return None if native[half] else "unsupported"
