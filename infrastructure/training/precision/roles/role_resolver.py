"""Resolves the precision of each role of a job, at every change of the run's precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch

from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import Notice
from infrastructure.events.precision_state import PrecisionName
from infrastructure.events.role_precision import FP32, RolePrecisions, roles_under, usable_preset
from infrastructure.training.precision.devices import has_half_type


class RoleResolver:
    """Resolves the precision of the roles of one job.

    Args:
        roles: Roles of the job; none for a job that trains a single model on recorded data.
        preset: Name of the preset that the job chose; None leaves it to the run's precision.
        device: Where the roles compute.
        cpu_half: Whether half precision may run on a CPU.
        emit: Receives the notices of `precisions`.

    Raises:
        UnknownPresetError: No preset has this name.
        PurePresetError: The preset has no FP32 master weights.
    """

    def __init__(
        self,
        roles: Iterable[Role],
        *,
        preset: str | None,
        device: torch.device,
        cpu_half: bool,
        emit: Callable[[Notice], None],
    ) -> None:
        self._roles = tuple(roles)
        self._preset = None if preset is None else usable_preset(preset)
        self._device, self._cpu_half, self._emit = device, cpu_half, emit
        self._warned: set[str] = set()

    def resolve(self, wish: PrecisionState) -> PrecisionState:
        """*wish*, or the precision of the job's own preset where only the default decided.

        A preset in FP32 also outranks a half type that the operator chose for the run, but not
        one that they chose by role. FP32 stays FP32.
        """
        preset = self._preset
        if preset is None or wish.effective == "fp32" or Role.POLICY in wish.roles:
            return wish
        if preset.half is None:
            return replace(wish, effective="fp32", reason="agent", roles={}, modules=(), parts={})
        if wish.reason == "default":
            return replace(
                wish,
                requested=preset.half,
                effective=preset.half,
                reason="agent",
                # By the guard, in a half type that the job has not chosen:
                roles={r: t if preset.half in t else str(FP32) for r, t in wish.roles.items()},
                parts=dict.fromkeys(wish.parts, "fp32"),
            )
        return wish

    def precisions(self, state: PrecisionState) -> RolePrecisions:
        """The precision of every role under *state*; FP32 where the device lacks a half type.

        Emits a warning once if policy and rollout round differently, and one for each role that
        somebody chose a half type for and that the job does not have.
        """
        precisions = replace(roles_under(state, self._preset), name="roles of this run")
        chosen = set(Role) if self._preset is not None else set(state.roles)
        if self._roles:
            for reason in precisions.without_effect({*self._roles, *(set(Role) - chosen)}):
                self._warn("role_precision_without_effect", reason)
        measured = state.effective if state.reason == "measured" else None  # on this device
        for role, precision in precisions.items():
            if precision.compute != measured and not self._has(precision.compute):
                precisions = precisions.with_role(role, FP32)
        if {Role.POLICY, Role.ROLLOUT} <= set(self._roles):
            for reason in precisions.warnings():
                self._warn("role_precisions_differ", reason)
        return precisions

    def _warn(self, event: str, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            self._emit(Notice(level="warning", event=event, fields={"reason": reason}))

    def acknowledge(self, state: PrecisionState, precisions: RolePrecisions) -> PrecisionState:
        """*state* with the types of every role of the job."""
        return replace(state, roles={role: str(precisions[role]) for role in self._roles})

    def _has(self, compute: PrecisionName) -> bool:
        return has_half_type(compute, self._device, cpu_half=self._cpu_half)
