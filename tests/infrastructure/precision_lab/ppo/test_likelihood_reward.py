import pytest
import torch

from infrastructure.policy import TokenBatch
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.precision_lab.ppo.initial_weights import reward_inputs
from infrastructure.precision_lab.ppo.likelihood_reward import LikelihoodReward


def test_the_reward_is_the_mean_probability_of_the_completion_alone() -> None:
    config = small_config(CharacterTokenizer("0123456789>"), width=8, layers=1, heads=2, context=16)
    model = build_policy(config, seed=0)
    prompts, completions = [[1, 2, 3], [4]], [[5], [6, 7, 8]]
    batch = TokenBatch.from_sequences(prompts, completions, pad_token=0)
    rewards_B = LikelihoodReward(model)(**reward_inputs(batch))
    for prompt, completion, reward in zip(prompts, completions, rewards_B, strict=True):
        ids = torch.tensor([[*prompt, *completion]])
        probabilities_TV = model(input_ids=ids).logits[0].softmax(-1)
        start = len(prompt) - 1
        taken = [probabilities_TV[start + i, token].item() for i, token in enumerate(completion)]
        assert reward.item() == pytest.approx(sum(taken) / len(taken), rel=1e-5)
