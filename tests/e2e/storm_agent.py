"""The quick agent's task with a fault: some of its batches are not numbers.

Trained with ``FP16_GROWTH_INTERVAL=1`` its gradients overflow in every second step or so: the loss
scale doubles after each good step until they do. Copied beside the quick agent by a fixture.
"""

from dataclasses import replace

import torch
from quick_agent import QuickAgent

from infrastructure.agent_contract import RunContext, Schedule, TrainingJob

NAN_EVERY = 20


class StormAgent(QuickAgent):
    """Overflows, and now and then has a loss that is NaN; its runs queue up."""

    name = "storm"

    def schedule(self) -> Schedule:
        return replace(super().schedule(), overlap="queue")

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        job = super().build_job(context, transitions)
        healthy = job.batches

        def batches(epoch: int):
            for index, batch in enumerate(healthy(epoch)):
                spoilt = index % NAN_EVERY == NAN_EVERY // 2  # not where an epoch ends and is told
                outputs = torch.full_like(batch["outputs"], torch.nan)
                yield {**batch, "outputs": outputs} if spoilt else batch

        return replace(job, batches=batches)
