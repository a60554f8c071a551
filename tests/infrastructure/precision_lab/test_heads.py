"""Values and rewards are fitted to what they must predict."""

import torch

from infrastructure.policy import TokenBatch
from infrastructure.precision_lab.heads import RewardModel, ValueHead
from tests.infrastructure.precision_lab.small_experiment import TOKENIZER, WIDTH, small_policy


def test_values_come_near_to_the_returns_they_were_fitted_to():
    torch.manual_seed(0)
    hidden_BTH = torch.randn(30, 5, WIDTH)
    returns_BS = hidden_BTH[:, :-1, 0].tanh()
    head = ValueHead(WIDTH)
    head.fit(hidden_BTH[:, :-1].flatten(0, 1), returns_BS.flatten())
    errors_BS = head(hidden_BTH) - returns_BS
    assert errors_BS.square().mean() < 0.2 * returns_BS.var()


def test_the_reward_depends_on_the_last_token_and_not_on_padding():
    model = RewardModel(small_policy(), WIDTH)
    prompt, completion = TOKENIZER.encode("1+2="), [6, 2]
    alone = TokenBatch.from_sequences([prompt], [completion], pad_token=0)
    other = [TOKENIZER.encode("12+34="), [4, 5, 6, 2]]
    padded = TokenBatch.from_sequences([prompt, other[0]], [completion, other[1]], pad_token=0)
    with torch.no_grad():
        one_NH = model.features(**alone.model_inputs())
        two_NH = model.features(**padded.model_inputs())
        torch.testing.assert_close(one_NH[0], two_NH[0])
        model.fit(two_NH, torch.tensor([0.0, 1.0]))
        rewards_B = model(**padded.model_inputs())
    torch.testing.assert_close(rewards_B, torch.tensor([0.0, 1.0]), atol=0.1, rtol=0)
