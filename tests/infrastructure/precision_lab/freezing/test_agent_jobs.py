"""Jobs of agents are trained a little and frozen with three different policies."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.agent_contract.on_policy_job import OnPolicyJob
from infrastructure.events import Role
from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.adapters import with_adapter
from infrastructure.policy.masked import masked_mean
from infrastructure.policy.rollout import TransformersRollout
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.experiment import in_fp32
from infrastructure.precision_lab.experiments.policy import OLD_LOG_PROBS
from infrastructure.precision_lab.freezing import (
    FreezeSize,
    policy_job_experiment,
    world_model_experiment,
)
from tests.infrastructure.precision_lab.small_experiment import TOKENIZER, small_policy

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
SIZE = FreezeSize(batches=2, batch_size=3, steps=2, rounds=1)


def _optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def _evaluation(_forward):
    return Evaluation(metrics={"x": 0.0}, primary="x", higher_is_better=True)


def _line_job(batches=3):
    torch.manual_seed(0)
    x = torch.randn(12, 1)
    return TrainingJob(
        model=nn.Linear(1, 1),
        optimizer=_optimizer,
        batches=lambda epoch: [{"x": x[n : n + 4] + epoch} for n in range(0, 4 * batches, 4)],
        loss=lambda forward, batch: (forward(batch["x"]) - 2 * batch["x"]).square().mean(),
        evaluate=_evaluation,
        epochs=1,
    )


def test_a_world_model_is_frozen_after_its_steps_with_the_next_batches():
    before = _line_job()
    experiment = world_model_experiment(_line_job(), CPU, SIZE)
    expected = [before.batches(0)[2]["x"], before.batches(1)[0]["x"]]
    assert all(map(torch.equal, (each["x"] for each in experiment.batches), expected))
    model = experiment.models[Role.WORLD_MODEL]
    assert not torch.equal(model.weight, before.model.weight)
    assert experiment.run(in_fp32).quantities["loss"].shape == (2,)


def test_a_job_without_batches_is_named():
    with pytest.raises(LabError, match="epoch 0"):
        world_model_experiment(_line_job(batches=0), CPU, SIZE)


def _policy_job(sampling=None, rewards=True, lora_rank=0):
    """Reward of a completion: whether its first token is a digit below 5."""
    sampling = sampling or Sampling()
    prompts = [TOKENIZER.encode(each) for each in ("1+2=", "3+4=", "12+3=")] * 4

    def batches(round_, roles):
        engine = TransformersRollout(roles.rollout, pad_token=0, stop_tokens=[2])
        batch = engine.generate(prompts, sampling=sampling, max_new_tokens=4, seed=round_)
        found_B = torch.tensor([float(each[0] < 8) for each in batch.responses()])
        tensors = {**batch.to_tensors(), **({"rewards_B": found_B} if rewards else {})}
        for rows in torch.arange(len(prompts)).split(6):
            yield {name: tensor[rows] for name, tensor in tensors.items()}

    def loss(forward, tensors):
        batch = TokenBatch.from_tensors(tensors)
        return -masked_mean(token_log_probs(forward, batch, sampling), batch.response_mask_BS)

    model = with_adapter(small_policy(), lora_rank, seed=0)
    model.value = nn.Linear(2, 2)  # a network beside the policy, which is not frozen
    return OnPolicyJob(
        model=model,
        optimizer=_optimizer,
        batches=batches,
        loss=loss,
        evaluate=_evaluation,
        epochs=1,
        warm_up_rounds=1,
        reference=True,
    )


@pytest.mark.parametrize("lora_rank", [0, 4])
def test_a_policy_is_frozen_with_an_earlier_reference_and_later_weights(lora_rank):
    experiment = policy_job_experiment(_policy_job(lora_rank=lora_rank), CPU, SIZE, seed=0)
    assert len(experiment.batches) == 2
    batch = TokenBatch.from_tensors(experiment.batches[0])
    assert len(batch) == 3
    torch.testing.assert_close(
        experiment.batches[0][OLD_LOG_PROBS], batch.log_probs_BS, atol=1e-5, rtol=1e-5
    )
    outcome = experiment.run(in_fp32)
    mask_BS = outcome.mask_BS
    assert (outcome.quantities["ratio"][mask_BS] != 1).any()
    assert outcome.quantities["kl"][mask_BS].mean() > 1e-6
    torch.testing.assert_close(
        outcome.quantities["rollout_log_probs"],
        outcome.quantities["old_log_probs"],
        atol=1e-5,
        rtol=1e-5,
    )
    roles = (Role.REFERENCE, Role.ROLLOUT)
    weights = [experiment.models[r].model.layers[0].mlp.up_proj.weight for r in roles]
    assert not torch.equal(*weights)


@pytest.mark.parametrize(
    ("job", "size", "message"),
    [
        (lambda: _policy_job(rewards=False), SIZE, "no rewards_B"),
        (lambda: _policy_job(Sampling(temperature=0.5)), SIZE, "temperature to 1"),
        (_policy_job, replace(SIZE, batch_size=8), "need 16"),
    ],
)
def test_what_cannot_be_frozen_is_named(job, size, message):
    with pytest.raises(LabError, match=message):
        policy_job_experiment(job(), CPU, replace(size, rounds=0), seed=0)
