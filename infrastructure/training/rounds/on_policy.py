"""The rounds of an `OnPolicyJob`, and the library's copies of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from infrastructure.agent_contract.on_policy_job import OnPolicyJob, Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training.distributed import DistributedModel, Ranks
from infrastructure.training.inputs import to_device
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.frozen_base import FrozenBase
from infrastructure.training.precision.roles import PRESETS, Role, RoleForward, RolePrecisions
from infrastructure.training.rounds.generation import generate


@dataclass(frozen=True, kw_only=True, slots=True)
class GeneratedRound:
    """A round that was generated just now, and what generated it.

    Attributes:
        number: The round, counted from 0.
        batches: Its batches.
        rollout: Copy of the weights that generated them.
        policy: The trained weights, at this moment those that the trainer will begin with.
        reference: The frozen copy of the job's reference; None if it has none.
        precisions: Precision in force of each role.
        device: Device of the batches.
    """

    number: int
    batches: Sequence[Batch]
    rollout: RoleForward
    policy: Module
    reference: RoleForward | None
    precisions: RolePrecisions
    device: torch.device


class OnPolicyRounds:
    """Generates each round on rank 0, in the precision of each role, for all ranks.

    Args:
        model: The trained model; its plain module on rank 0 holds the weights.

    Attributes:
        per_epoch: Rounds between two evaluations.
        batches: Those of the round under way, or of the last one.
        generates: Whether `begin` generates batches with the model.
        generated: The round that the last `begin` has generated; None if a checkpoint held it, in
            the warm-up, and on other ranks than 0.
    """

    generates = True

    def __init__(
        self, job: OnPolicyJob, model: DistributedModel, ranks: Ranks, device: torch.device
    ) -> None:
        self._job, self._model, self._ranks, self._device = job, model, ranks, device
        self._base = FrozenBase(model.plain)
        self.per_epoch = job.rounds_per_epoch
        self._precisions = PRESETS["fp32_baseline"]
        self.generated: GeneratedRound | None = None
        self._round = -1  # the one that `batches` belong to
        self.batches: list[Batch] = []
        self._rollout: RoleForward | None = None
        self._reference: RoleForward | None = None
        self._synced_round: int | None = None  # None: the trained weights have jumped since

    def set_precision(self, precisions: RolePrecisions) -> None:
        """Compute every role in its type from now on, from the float32 weights of its copy."""
        self._precisions = precisions
        if self._rollout is not None:
            self._rollout.set_precision(precisions[Role.ROLLOUT])
        if self._reference is not None:
            self._reference.set_precision(precisions[Role.REFERENCE])

    def begin(self, round_: int) -> list[Batch]:
        """Generate the batches of *round_*, or return those that a checkpoint holds."""
        self.generated = None
        if self._round != round_:
            self._model.update_plain(self._ranks, self._device)
            batches = self._generate(round_) if self._ranks.is_rank_zero else []
            if self._ranks.count > 1:  # they travel through the CPU
                batches = [to_device(batch, torch.device("cpu")) for batch in batches]
            self._round, self.batches = round_, self._ranks.broadcast(batches)
            if self._ranks.is_rank_zero and self._rollout and round_ >= self._job.warm_up_rounds:
                self.generated = GeneratedRound(
                    number=round_,
                    batches=batches,
                    rollout=self._rollout,
                    policy=self._model.plain,
                    reference=self._reference,
                    precisions=self._precisions,
                    device=self._device,
                )
        return self.batches

    def _generate(self, round_: int) -> list[Batch]:
        plain = self._model.plain
        training = plain.training
        plain.eval()
        try:
            return generate(self._job, round_, self._roles(round_))
        finally:
            plain.train(training)

    def _roles(self, round_: int) -> Roles:
        job, plain, policy = self._job, self._model.plain, self._precisions[Role.POLICY]
        if round_ <= job.warm_up_rounds:  # the reference is what the warm-up leaves
            self._reference = self._copy(self._reference, Role.REFERENCE) if job.reference else None
        if self._rollout is None or round_ <= job.warm_up_rounds or self._is_stale(round_):
            self._rollout, self._synced_round = self._copy(self._rollout, Role.ROLLOUT), round_
        return Roles(
            rollout=self._rollout,
            policy=PrecisionForward(plain, self._device, Precision(policy.compute)),
            reference=self._reference,
            device=str(self._device),
            batches_per_step=self._ranks.count * job.accumulate,
        )

    def _is_stale(self, round_: int) -> bool:
        """Whether the rollout copy must be synchronised before *round_*."""
        synced = self._synced_round
        return synced is None or round_ - synced >= self._job.sync_every_rounds

    def _copy(self, earlier: RoleForward | None, role: Role) -> RoleForward:
        """The trained weights in the types of *role*; in the place of its *earlier* copy."""
        if earlier is None:
            return RoleForward(self._model.plain, self._device, self._precisions[role])
        earlier.update(self._model.plain)
        return earlier

    def synchronize(self) -> None:
        """Copy the trained weights to the rollout role before the next round."""
        self._synced_round = None

    def state_dict(self) -> dict[str, Any]:
        """The batches of the round under way, and the float32 weights that only a copy holds."""
        lagging = self._rollout if self._job.sync_every_rounds > 1 else None
        rollout, rollout_base = self._saved(lagging)
        reference, reference_base = self._saved(self._reference)
        return {
            "round": self._round,
            "batches": [dict(batch) for batch in self.batches],
            "synced_round": self._synced_round,
            "rollout": rollout,
            "rollout_base": rollout_base,
            "reference": reference,
            "reference_base": reference_base,
        }

    def _saved(self, copy: RoleForward | None) -> tuple[dict[str, Any] | None, dict[str, str]]:
        return (None, {}) if copy is None else self._base.leave_out(copy.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` returned on any number of ranks."""
        self._round, self.batches = state["round"], state["batches"]
        self._synced_round = state["synced_round"]
        if self._ranks.is_rank_zero:
            self._rollout = self._restored(Role.ROLLOUT, state)
            self._reference = self._restored(Role.REFERENCE, state)

    def _restored(self, role: Role, state: dict[str, Any]) -> RoleForward | None:
        weights, base = state[role], state.get(f"{role}_base", {})  # earlier releases lack the base
        if weights is None:
            return None
        copy = RoleForward(self._model.plain, self._device, self._precisions[role])
        copy.load_state_dict(self._base.put_back(weights, base))
        return copy
