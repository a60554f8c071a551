"""The one place that decides in which precision a training computes."""

from __future__ import annotations

from dataclasses import dataclass

from infrastructure.agent_contract import Job
from infrastructure.events import PrecisionState
from infrastructure.events.role_precision import RolePrecisions
from infrastructure.training.distributed import Ranks
from infrastructure.training.loop.auto_precision import AutoPrecision
from infrastructure.training.loop.env import TrainingEnv
from infrastructure.training.precision import resolve
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

        Raises:
            RuntimeError, ValueError: See `preflight`.
        """
        chosen = self._roles.resolve(self._auto.resolve(wish))
        state = resolve(chosen, self._device, cpu_half=self._cpu_half)
        roles = self._roles.precisions(state)
        return DecidedPrecision(state=self._roles.acknowledge(state, roles), roles=roles)
