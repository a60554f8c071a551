from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from infrastructure.agent_contract import Forward
from infrastructure.policy import (
    Sampling,
    TokenBatch,
    log_probs_and_hidden_states,
    log_probs_of_logits,
    token_log_probs,
)
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision import Precision, PrecisionForward
from infrastructure.training.precision.roles import RoleForward, RolePrecision

CPU = torch.device("cpu")
BATCH = TokenBatch.from_sequences([[1, 2], [3]], [[4], [5, 6]], pad_token=0)


class Table:
    """A model that knows only the last token: its logits are the rows of a table."""

    def __init__(self, logits_VV: Tensor) -> None:
        self.logits_VV = logits_VV

    def __call__(self, input_ids: Tensor, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(logits=self.logits_VV[input_ids])

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(name)


def test_each_token_is_predicted_from_the_one_before_it() -> None:
    logits = torch.randn(7, 7)

    result = token_log_probs(Table(logits), BATCH, Sampling())

    expected = torch.zeros(2, 3)
    log_probs = logits.log_softmax(-1)
    expected[0, 1] = log_probs[2, 4]
    expected[1, 1], expected[1, 2] = log_probs[3, 5], log_probs[5, 6]
    torch.testing.assert_close(result, expected)


def test_the_rule_of_sampling_shapes_the_distribution() -> None:
    logits = torch.arange(7.0).repeat(7, 1)

    result = token_log_probs(Table(logits), BATCH, Sampling(temperature=2.0, top_k=2))

    expected = torch.tensor([2.5, 3.0]).log_softmax(-1)  # of tokens 5 and 6
    torch.testing.assert_close(result[1, 1:], expected)
    # 4 is not among the two, but it was drawn.
    torch.testing.assert_close(result[0, 1], torch.tensor([2.0, 2.5, 3.0]).log_softmax(-1)[0])


def test_no_gradient_comes_from_masked_positions() -> None:
    logits = torch.randn(2, 4, 7, requires_grad=True)

    log_probs_of_logits(logits, BATCH, Sampling(top_p=0.9)).sum().backward()

    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    touched = logits.grad.abs().sum(-1) > 0
    assert touched[:, :-1].tolist() == BATCH.response_mask_BS.tolist()
    assert not touched[:, -1].any()


def test_half_logits_are_cast_before_the_softmax() -> None:
    logits = torch.randn(2, 4, 7).bfloat16()

    result = log_probs_of_logits(logits, BATCH, Sampling())

    assert result.dtype == torch.float32
    expected = log_probs_of_logits(logits.float(), BATCH, Sampling())
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_logits_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match=r"B, T = \[2, 4\], got \[2, 5, 7\]"):
        log_probs_of_logits(torch.zeros(2, 5, 7), BATCH, Sampling())


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_frozen_role_and_the_trainer_compute_the_same_bits(precision: str) -> None:
    model = build_policy(small_config(CharacterTokenizer("abcd"), width=32, layers=2), seed=0)
    types = RolePrecision.parse(f"fp32/{precision}/fp32")
    frozen = token_log_probs(RoleForward(model, CPU, types), BATCH, Sampling())
    trained = []

    def loss(forward: Forward, batch: TokenBatch) -> Tensor:
        trained.append(token_log_probs(forward, batch, Sampling()))
        return trained[0].sum()

    PrecisionForward(model.train(), CPU, Precision(precision)).compute_loss(loss, BATCH)

    assert trained[0].requires_grad
    assert torch.equal(trained[0], frozen)


def test_the_hidden_states_are_those_that_the_logits_are_computed_from() -> None:
    model = build_policy(small_config(CharacterTokenizer("abcd"), width=32, layers=2), seed=0)
    forward = PrecisionForward(model, CPU, Precision.FP32)

    log_probs_BS, hidden_BTH = log_probs_and_hidden_states(forward, BATCH, Sampling())

    assert torch.equal(log_probs_BS, token_log_probs(forward, BATCH, Sampling()))
    logits_BTV = model.get_output_embeddings()(hidden_BTH)
    again_BS = log_probs_of_logits(logits_BTV, BATCH, Sampling())
    torch.testing.assert_close(again_BS, log_probs_BS)
