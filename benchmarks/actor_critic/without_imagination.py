"""The example Dreamer without imagination: actor and critic see recorded steps only.

World model, networks, steps of the environment and updates are the same. But the critic learns the
returns of the recorded sequences, in the features that the world model gives them, and the actor
makes the recorded actions likelier by how much better than the critic's expectation they came out
(a policy gradient without a correction for the age of the actions, as no older actor is kept).

Legend: as in the example.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from importlib import import_module

import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch, Job


def without_imagination(job: Job) -> Job:
    """*job* of the example with other losses of actor and critic."""
    world, actor, critic = job.parts
    return replace(job, parts=[world, replace(actor, loss=actor_loss), critic])


def actor_loss(forward: Forward, batch: Batch, computed: MutableMapping[str, Tensor]) -> Tensor:
    """Negative log-density of the recorded actions, weighted by what they gained."""
    example = import_module("dreamer_agent")
    feature_TBF, first_TB = computed["feature"].transpose(0, 1), batch["first"].T
    value_TB = forward.method("target", feature_TBF)[..., 0]
    before_end_TB = first_TB[1:] == 1  # what followed these steps is in no sequence
    reward_TB = example.REWARD_SCALE * batch["reward"].T[:-1]
    discount_TB = example.DISCOUNT * (1 - batch["terminated"].T[:-1])
    returns_TB = example.mixed_returns(
        torch.where(before_end_TB, value_TB[:-1], reward_TB),
        discount_TB.masked_fill(before_end_TB, 0),
        value_TB,
    )
    feature_TBF, weight_TB = feature_TBF[:-1], 1 - first_TB[1:]
    computed.update(imagined=feature_TBF, returns=returns_TB, weight=weight_TB)
    policy = example.normal(forward.method("actor", feature_TBF))
    raw_TB1 = batch["action"].transpose(0, 1)[:-1].clamp(-0.999, 0.999).atanh()
    gain_TB = returns_TB - forward.method("critic", feature_TBF)[..., 0].detach()
    gained_TB1 = policy.log_prob(raw_TB1) * gain_TB[..., None]
    entropy_TB1 = example.ENTROPY * policy.stddev.log()
    return -torch.mean(weight_TB[..., None] * (gained_TB1 + entropy_TB1))
