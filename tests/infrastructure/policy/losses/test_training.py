"""Every loss trains a policy, in every precision, with the trainer that is used for real."""

from functools import partial

import pytest
import torch
from torch import nn

from infrastructure.policy import Sampling, TokenBatch, log_probs_of_logits
from infrastructure.policy.corrections import CORRECTIONS
from infrastructure.policy.losses import (
    LossInputs,
    dr_grpo_loss,
    flowrl_loss,
    grpo_loss,
    gspo_loss,
    ppo_loss,
)
from infrastructure.policy.losses.advantages import dr_grpo_advantages
from infrastructure.policy.losses.log_partition import LogPartition, prompt_mask
from infrastructure.training import FP16Trainer, FP16TrainingConfig

LOSSES = {
    "grpo": grpo_loss,
    "dr grpo": partial(dr_grpo_loss, max_length=3),
    "gspo": gspo_loss,
    "ppo": ppo_loss,
    "flowrl": flowrl_loss,
}
GOOD, BAD = [4, 5, 3], [6, 3]
BATCH = TokenBatch.from_sequences([[1, 2], [2], [1, 2], [2]], [GOOD, GOOD, BAD, BAD], pad_token=0)
ADVANTAGES_B = dr_grpo_advantages(torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0, 1, 0, 1]))


class Policy(nn.Module):
    """Predicts from the last token alone; has FlowRL's network as a part."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 8)
        self.log_partition = LogPartition(16, dropout=0.0)

    def forward(self, tokens_BT):
        hidden_BTH = self.hidden(self.embedding(tokens_BT)).tanh()
        return self.head(hidden_BTH), hidden_BTH


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", LOSSES)
def test_the_better_answer_becomes_more_probable(name, precision):
    torch.manual_seed(0)
    model = Policy()
    first_weight = model.log_partition.network[0].weight.detach().clone()
    trainer = FP16Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True),
        FP16TrainingConfig(precision=precision, cpu_half=True, loss_scale=1024.0),
    )

    def log_probs(forward):
        return log_probs_of_logits(forward(BATCH.tokens_BT)[0], BATCH, Sampling())

    with torch.no_grad():
        before_BS = log_probs(model)
        mask_BS = BATCH.response_mask_BS
        rollout_BS = before_BS + 0.03 * torch.randn(before_BS.shape)
        correction = CORRECTIONS["token-tis"](before_BS, rollout_BS, mask_BS)
    prompt_mask_BT = prompt_mask(BATCH.attention_mask_BT, mask_BS)

    def loss(forward, batch):
        logits_BTV, hidden_BTH = forward(BATCH.tokens_BT)
        inputs = LossInputs(
            log_probs_BS=log_probs_of_logits(logits_BTV, BATCH, Sampling()),
            old_log_probs_BS=before_BS,
            advantages=ADVANTAGES_B,
            mask_BS=mask_BS,
            reference_log_probs_BS=before_BS,
            correction=correction,
        )
        if name != "flowrl":
            return LOSSES[name](inputs).loss
        log_partition_B = forward.method("log_partition", hidden_BTH, prompt_mask_BT)
        return flowrl_loss(inputs, log_partition_B).loss

    for _ in range(8):
        trainer.backward_and_step(trainer.training_step({}, loss))

    gain_B = (log_probs(model).detach() - before_BS).sum(1)
    assert gain_B[:2].min() > gain_B[2:].max()
    assert trainer.precision_state.effective == precision
    assert trainer.get_stats()["applied_steps"] == 8
    trained = not torch.equal(first_weight, model.log_partition.network[0].weight)
    assert trained == (name == "flowrl")
