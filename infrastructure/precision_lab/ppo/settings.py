"""What a cell trains, apart from preset and seed. Imports no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from infrastructure.precision_lab.errors import LabError

_LONGEST_SECONDS = 1e9  # a timer of Python takes a little more


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSettings:
    """Settings that all cells of a sweep share.

    Attributes:
        updates: Optimizer updates of a cell.
        completions: Completions generated in a round.
        minibatches: Parts of a round; each is one update of an epoch.
        epochs: Passes over a round, so that most updates meet old log-probabilities of other
            weights.
        learning_rate: Of AdamW, for policy and value head.
        kl_coefficient: Weight of the penalty in the reward of each token.
        clip: Half width of PPO's range of ratios.
        value_coefficient: Weight of the value loss.
        gae_lambda: λ of the generalised advantages; rewards are not discounted.
        max_grad_norm: Bound of the norm of all gradients together.
        width: Size of the hidden states; FP16 on a CPU is very slow above 64.
        layers: Number of blocks.
        reward_model_steps: FP32 steps on right answers that make the reward model.
        warm_up_steps: Further FP32 steps, on answers with errors, that make the initial policy.
        demonstration_errors: Share of wrong digits in these answers.
        preparation_batch: Sequences in each step of both.
        base_model: Folder of a causal language model to begin with; None for a small new one.
        max_new_tokens: Tokens of a completion, its end included; answers have up to 6 digits.
        task_reward: Reward completions with the task's own score, in the types of the role
            ``reward``, and not with the reward model's.
        device: Where to compute, as torch names it.
        timeout_seconds: A cell that takes longer has failed.

    Raises:
        LabError: A number is outside of its range.
    """

    updates: int = 120
    completions: int = 128
    minibatches: int = 2
    epochs: int = 2
    learning_rate: float = 5e-4
    kl_coefficient: float = 0.01
    clip: float = 0.2
    value_coefficient: float = 0.1
    gae_lambda: float = 0.95
    max_grad_norm: float = 1.0
    width: int = 32
    layers: int = 2
    reward_model_steps: int = 500
    warm_up_steps: int = 60
    demonstration_errors: float = 0.4
    preparation_batch: int = 128
    base_model: str | None = None
    max_new_tokens: int = 8
    task_reward: bool = False
    device: str = "cpu"
    timeout_seconds: float = 1800.0

    def __post_init__(self) -> None:
        at_least_one = (
            "updates",
            "minibatches",
            "epochs",
            "width",
            "layers",
            "preparation_batch",
            "max_new_tokens",
        )
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise LabError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "clip", "max_grad_norm", "timeout_seconds"):
            if not getattr(self, name) > 0:
                raise LabError(f"{name} must be above 0, got {getattr(self, name)}")
        if not 0 <= self.demonstration_errors < 1:
            raise LabError(
                f"demonstration_errors must be at least 0 and below 1, got "
                f"{self.demonstration_errors}"
            )
        if self.timeout_seconds > _LONGEST_SECONDS:
            raise LabError(
                f"timeout_seconds must be at most {_LONGEST_SECONDS:g}, got {self.timeout_seconds}"
            )
        if self.completions < self.minibatches:
            raise LabError(
                f"{self.completions} completions of a round cannot be split into "
                f"{self.minibatches} minibatches: generate more"
            )

    def quick(self) -> CellSettings:
        """The same in seconds a cell: enough to see that everything works, not to compare."""
        return replace(
            self,
            updates=8,
            completions=16,
            reward_model_steps=60,
            warm_up_steps=20,
            preparation_batch=32,
        )

    def as_dict(self) -> dict[str, Any]:
        """The settings by name."""
        return asdict(self)
