"""The one place that decides in which precision a training computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from infrastructure.agent_contract import Job
from infrastructure.agent_contract.parts import parts_among
from infrastructure.events import PrecisionState
from infrastructure.events.event import NOT_RAISED, Notice
from infrastructure.events.role_precision import RolePrecisions
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop.auto_precision import AutoPrecision
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.precision import UnknownModuleError, resolve
from infrastructure.training.precision.keep_fp32 import find_modules
from infrastructure.training.precision.roles import RoleResolver
from infrastructure.training.rounds import kind_of


@dataclass(frozen=True, kw_only=True, slots=True)
class DecidedPrecision:
    """Precision that this job computes in on this device.

    Attributes:
        state: Requested, effective, the reason, and the types of every role of the job.
        roles: The same types; FP32 for roles that the job does not have.
    """

    state: PrecisionState
    roles: RolePrecisions


class PrecisionDecision:
    """Decides from what is wished: by measurement, by the job's own preset, by the device.

    Args:
        job: Job whose copies are measured when ``auto`` is first in force.
        env: Configuration, device, folder of a measured choice, and who gets the notices.
        ranks: The ranks; all get one decision.
    """

    def __init__(self, job: Job, env: TrainingEnv, ranks: Ranks) -> None:
        self._device, self._cpu_half = env.device, env.config.cpu_half
        self._model, self._emit = job.model, env.emit
        self._parts = {part.name for part in job.parts}
        self._kept_parts = set(parts_among(job.keep_fp32, job.parts))
        self._auto = AutoPrecision(job, env.device, env.config, env.folder, ranks, env.emit)
        kind = kind_of(job)
        self._roles = RoleResolver(
            kind.roles,
            preset=kind.role_preset,
            device=env.device,
            cpu_half=env.config.cpu_half,
            emit=env.emit,
        )

    def decide(self, wish: PrecisionState) -> DecidedPrecision:
        """The precision for *wish*. Every rank must call it.

        FP32, with a warning, where modules are to be raised that the model does not have, or all.

        Raises:
            RuntimeError, ValueError: See `preflight`.
        """
        chosen = self._roles.resolve(self._auto.resolve(self._with_known_modules(wish)))
        state = resolve(chosen, self._device, cpu_half=self._cpu_half)
        roles = self._roles.precisions(state)
        return DecidedPrecision(state=self._roles.acknowledge(state, roles), roles=roles)

    def _with_known_modules(self, wish: PrecisionState) -> PrecisionState:
        """*wish*, or FP32 if the modules or parts that it changes cannot be changed one by one."""
        try:
            raised = find_modules(self._model, wish.modules)
        except UnknownModuleError as error:
            why = str(error).replace("keep_fp32 names", "the guard raised")
        else:
            inside = {id(p) for module in raised.values() for p in module.parameters()}
            is_whole = raised and all(id(p) in inside for p in self._model.parameters())
            in_fp32 = {part for part, name in wish.parts.items() if name == "fp32"}
            in_fp32 |= self._kept_parts if in_fp32 else set()
            if gone := sorted(wish.parts.keys() - self._parts):
                why = f"the guard changed part {gone[0]!r}, and the job has no such part"
            elif is_whole or (in_fp32 and in_fp32 == self._parts):
                why = f"{', '.join((*wish.modules, *wish.parts))} are all of the model"
            else:
                parts = wish.parts.items()  # what the job keeps in FP32 stays so
                changed = {part: name for part, name in parts if part not in self._kept_parts}
                return replace(wish, parts=changed)
        consequence = "the whole job computes in FP32"
        modules = ", ".join((*wish.modules, *wish.parts))
        notice = Notice.warning(NOT_RAISED, why, modules=modules, consequence=consequence)
        self._emit(notice)
        return replace(wish, effective="fp32", reason="guard", roles={}, modules=(), parts={})
