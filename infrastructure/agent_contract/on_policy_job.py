"""A job whose model generates its own batches: reinforcement learning."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from infrastructure.agent_contract.training_job import Batch, Forward, Job

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class RoleTypes(Protocol):
    """Types of one role: of its weights, its operations and its results; ``fp16``, ``fp32``, …."""

    @property
    def store(self) -> str:
        """Type of the weights."""

    @property
    def compute(self) -> str:
        """Type of the operations that autocast lowers."""

    @property
    def out(self) -> str:
        """Type of the results."""


class RoleModel(Forward, Protocol):
    """A frozen copy of the trained model; calling it computes in the types of its role."""

    @property
    def module(self) -> Module:
        """The copy, to read its configuration, vocabulary or device from.

        Calling it directly would bypass the precision of the role.
        """

    @property
    def precision(self) -> RoleTypes:
        """Types in force; a rollback changes them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The models of a round, without gradients and in evaluation mode; the library owns them.

    Each computes under the precision of its role, which a rollback changes to FP32.

    Attributes:
        rollout: Copy of the weights of the last synchronisation, to generate with.
        policy: The weights being trained, computed as the trainer computes them: for the
            log-probabilities of the old policy.
        reference: Copy of the weights after the warm-up, which never changes; None if the job
            asked for none.
        device: Torch device of all three: ``cpu``, ``cuda:0``.
        batches_per_step: Batches that make one optimizer step: ranks times accumulated
            micro-batches. A job that shall make the same steps on any number of ranks yields a
            multiple of it.
        check: Whether the round only checks or measures the job, with its untrained model. A job
            must then keep nothing of it: no record, no state.
    """

    rollout: RoleModel
    policy: Forward
    reference: RoleModel | None
    device: str
    batches_per_step: int = 1
    check: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class LogProbFunctions:
    """How trainer and rollout compute the log-probabilities of a batch's sampled tokens.

    With them the library measures how far the two disagree, and what a reference loses by rounding.
    For B sequences and S predicted tokens, every result has the shape [B, S]; the first size of
    every tensor of a batch that belongs to its sequences is B. `infrastructure.policy` has those of
    its token batches.

    Attributes:
        recorded: Function from a batch to the log-probabilities that the rollout recorded, float32,
            and to the mask of valid tokens, bool.
        policy: Function from forward and batch to them, float32, as the loss computes them; called
            with `Roles.reference` too.
        rollout: Function from `Roles.rollout` and batch to them, float32, as the rollout computes
            them: token by token, with its cache.
    """

    recorded: Callable[[Batch], tuple[Tensor, Tensor]]
    policy: Callable[[Forward, Batch], Tensor]
    rollout: Callable[[RoleModel, Batch], Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class OnPolicyJob(Job):
    """A job that trains in rounds: each generates batches with the policy, then trains on them.

    A policy that acts in environments generates them with `infrastructure.environments`.

    The library owns the copies of the weights that generate and that serve as reference, and
    chooses their precision, so that no agent can keep one in half precision after a rollback.
    Checkpoints hold the batches of the round under way and the copies, so that a resumed run
    continues in the middle of a round.

    `Agent.publish` gets the weights of the epoch with the best evaluation after the warm-up. Decide
    about publication on other data: the best of many evaluations is too good.

    Attributes:
        batches: Function from a round, counted from 0, and the roles to the round's batches. Equal
            arguments must give equal batches: draw random numbers from the run's seed and the
            round alone. With several ranks only rank 0 calls it, and all ranks share the batches.
        rounds_per_epoch: Rounds between two evaluations.
        warm_up_rounds: Rounds at the beginning that train on demonstrations: `batches` does not use
            the roles in them.
        sync_every_rounds: Rounds between two copies of the trained weights to the rollout role. 1
            is on-policy; N generates with weights that are up to N - 1 rounds old.
        reference: Whether the loss needs `Roles.reference`.
        value: Name of the module inside the model whose role is ``value``, if there is one; run it
            by ``forward.method``. It computes in FP32, as in every preset that a run may have.
        role_precision: Name of a preset of precisions by role, which holds where neither the
            operator nor the guard chose a role's precision and nothing demands FP32; None leaves
            it to the run's precision.
        log_probs: How to compute the log-probabilities of the batches after the warm-up, so that
            the mismatch of trainer and rollout is measured; None if it cannot be.
        round_metrics: Function from the batches of the last round before an evaluation to further
            metrics of it, such as how much of the data a correction dropped; called after the
            warm-up, without gradients. None for none.

    Raises:
        ValueError: *rounds_per_epoch* or *sync_every_rounds* is below 1, or *warm_up_rounds*
            negative.
    """

    batches: Callable[[int, Roles], Iterable[Batch]]
    rounds_per_epoch: int = 1
    warm_up_rounds: int = 0
    sync_every_rounds: int = 1
    reference: bool = False
    value: str | None = None
    role_precision: str | None = None
    log_probs: LogProbFunctions | None = None
    round_metrics: Callable[[Sequence[Batch]], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        Job.__post_init__(self)  # super() does not work in a class with slots of its own
        if self.value is not None and self.value not in self.keep_fp32:
            object.__setattr__(self, "keep_fp32", (*self.keep_fp32, self.value))
        if self.rounds_per_epoch < 1 or self.sync_every_rounds < 1 or self.warm_up_rounds < 0:
            raise ValueError(
                "rounds_per_epoch and sync_every_rounds must be at least 1 and warm_up_rounds at "
                f"least 0, got {self.rounds_per_epoch}, {self.sync_every_rounds} and "
                f"{self.warm_up_rounds}"
            )
