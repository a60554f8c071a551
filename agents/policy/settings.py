"""Settings of the policy agent."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from agents.policy.tasks import TaskName

MOST_COMPLETIONS = 16_384  # in a round: what they hold must fit into memory at once

LossName = Literal["dr_grpo", "grpo", "gspo", "flowrl", "ppo"]


class PolicySettings(BaseModel):
    """Settings of the policy agent.

    Attributes:
        task: What the policy learns.
        start: Weights to begin with: those in use, if any, or random ones.
        rounds: Rounds after the warm-up; rounded up, so that a run ends with an evaluation.
        rounds_per_epoch: Rounds between two evaluations.
        prompts_per_round: Different prompts in a round; times the completions at most 16,384.
        completions_per_prompt: Completions of each, whose rewards are compared with each other.
        steps_per_round: Optimizer steps that share a round's completions; at most their number.
        sync_every_rounds: Rounds between two copies of the weights to the rollout; 1 is on-policy.
        learning_rate: Of the warm-up, by default 1e-3 for arithmetic and else 7e-4; then it falls
            linearly to a tenth.
        loss: Loss of the completions. flowrl trains Z beside the policy, ppo a value network with
            λ 0.95.
        kl_coefficient: Weight of the divergence from the policy after the warm-up; 0 for none.
        correction: Correction for the mismatch of rollout and trainer, by its name; none for none.
        lora_rank: Rank of the adapter that is trained over the policy in use, which is frozen; 0
            trains all weights, and so does a run that finds no policy in use.
        temperature: Temperature of the rollout, and of the held-out completions that are rewarded.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    task: TaskName = "arithmetic"
    start: Literal["published", "random"] = "published"
    rounds: int = Field(default=300, ge=1, le=1_000_000)
    rounds_per_epoch: int = Field(default=25, ge=1, le=10_000)
    prompts_per_round: int = Field(default=32, ge=1, le=4096)
    completions_per_prompt: int = Field(default=8, ge=2, le=1024)
    steps_per_round: int = Field(default=2, ge=1, le=1024)
    sync_every_rounds: int = Field(default=1, ge=1, le=1000)
    learning_rate: float | None = Field(default=None, gt=0.0, le=1.0)
    loss: LossName = "dr_grpo"
    kl_coefficient: float = Field(default=0.0, ge=0.0, le=1000.0, allow_inf_nan=False)
    correction: str = "none"
    lora_rank: int = Field(default=0, ge=0, le=1024)
    temperature: float = Field(default=1.0, ge=0.01, le=100.0)

    @field_validator("correction")
    @classmethod
    def _check_correction(cls, value: str) -> str:
        from infrastructure.policy.corrections import CORRECTIONS

        if value not in CORRECTIONS:
            raise ValueError(
                f"unknown correction {value!r}: choose one of {', '.join(CORRECTIONS)}"
            )
        return value

    @model_validator(mode="after")
    def _check_base(self) -> PolicySettings:
        if self.lora_rank and self.start == "random":
            raise ValueError(
                f"LORA_RANK={self.lora_rank} freezes the policy in use, but START=random begins "
                "without one: set START=published, or LORA_RANK=0"
            )
        return self

    @model_validator(mode="after")
    def _check_size_of_a_round(self) -> PolicySettings:
        completions = self.prompts_per_round * self.completions_per_prompt
        product = (
            f"PROMPTS_PER_ROUND x COMPLETIONS_PER_PROMPT = {self.prompts_per_round} x "
            f"{self.completions_per_prompt} = {completions} completions"
        )
        if completions > MOST_COMPLETIONS:
            raise ValueError(f"{product} in a round, but at most {MOST_COMPLETIONS}: lower one")
        if self.steps_per_round > completions:
            raise ValueError(
                f"STEPS_PER_ROUND={self.steps_per_round} needs at least one completion for each "
                f"step, but {product}: lower STEPS_PER_ROUND or raise one of these"
            )
        return self
