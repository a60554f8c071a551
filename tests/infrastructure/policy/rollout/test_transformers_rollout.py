from typing import Any

import pytest
import torch
from transformers import GPT2Config, LlamaConfig, MistralConfig

from infrastructure.policy import Sampling, TokenBatch, token_log_probs
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.rollout import (
    NonFiniteLogitsError,
    RolloutRequestError,
    TransformersRollout,
)
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.training.precision import Precision
from infrastructure.training.precision.roles import RoleForward, RolePrecision

TOKENIZER = CharacterTokenizer("0123456789abcdefghijklmnopqrstuvwxyz+=")
PROMPTS = [[1, 5, 6, 7], [1, 8], [1, 9, 10, 11, 12, 13], [1, 8]]
RULES = [
    Sampling(),
    Sampling(temperature=0.5),
    Sampling(temperature=1.5, top_k=5),
    Sampling(top_p=0.7),
    Sampling(temperature=0.8, top_k=20, top_p=0.9),
    Sampling(top_k=1),
]
FP32 = "fp32/fp32/fp32"


def a_model(seed: int = 0) -> torch.nn.Module:
    """A model with opinions: its logits are spread as those of a trained one."""
    model = build_policy(
        small_config(TOKENIZER, width=32, layers=2, heads=4, context=64), seed=seed
    )
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    return model


def role(model: torch.nn.Module, precision: str = FP32) -> RoleForward:
    return RoleForward(model, torch.device("cpu"), RolePrecision.parse(precision))


def rollout(forward: RoleForward, **values: Any) -> TransformersRollout:
    return TransformersRollout(forward, **{"pad_token": 0, "stop_tokens": {2}, **values})


@pytest.mark.process
@pytest.mark.parametrize("sampling", RULES, ids=str)
def test_recorded_log_probs_are_those_of_a_full_forward_pass(sampling: Sampling) -> None:
    forward = role(a_model())

    batch = rollout(forward).generate(PROMPTS, sampling=sampling, max_new_tokens=24, seed=1)

    batch.check()
    assert batch.log_probs_BS is not None
    again = token_log_probs(forward, batch, sampling)
    torch.testing.assert_close(batch.log_probs_BS, again, rtol=0, atol=1e-5)
    if sampling.truncates and sampling.top_k != 1:
        # The log-probability of the untruncated distribution is another one, by far.
        plain = token_log_probs(forward, batch, Sampling(temperature=sampling.temperature))
        assert (plain - again)[batch.response_mask_BS].mean() < -0.05


@pytest.mark.process
@pytest.mark.parametrize("sampling", RULES, ids=str)
@pytest.mark.parametrize("precision", [FP32, "fp16/fp16/fp32", "fp32/bf16/fp32"])
def test_rescoring_repeats_what_was_recorded(sampling: Sampling, precision: str) -> None:
    engine = rollout(role(a_model(), precision))
    batch = engine.generate(PROMPTS, sampling=sampling, max_new_tokens=6, seed=1)

    assert batch.log_probs_BS is not None
    assert torch.equal(engine.rescore(batch, sampling), batch.log_probs_BS)


def test_rescoring_keeps_a_token_that_truncation_would_cut_off() -> None:
    forward, sampling = role(a_model()), Sampling(top_k=1)
    batch = TokenBatch.from_sequences([[1, 5], [1, 6]], [[7, 8, 9], [10, 11]], pad_token=0)

    found_BS = rollout(forward).rescore(batch, sampling)

    assert found_BS[batch.response_mask_BS].min() < -0.1  # unlike the only token that is drawn
    torch.testing.assert_close(
        found_BS, token_log_probs(forward, batch, sampling), rtol=0, atol=1e-5
    )


def test_logits_after_the_end_of_a_row_may_be_anything() -> None:
    model = a_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[0] = torch.nan  # of the padding
    batch = TokenBatch.from_sequences([[1, 5], [1, 6]], [[7, 2], [7, 8, 9, 10]], pad_token=0)

    found_BS = rollout(role(model)).rescore(batch, Sampling())

    assert found_BS.isfinite().all()
    assert (found_BS[batch.response_mask_BS] < 0).all()


def test_the_seed_decides_the_batch() -> None:
    engine = rollout(role(a_model()))

    def tokens(seed: int) -> list[list[int]]:
        torch.rand(1)  # the global generator has no part in it
        return engine.generate(
            PROMPTS, sampling=Sampling(), max_new_tokens=12, seed=seed
        ).responses()

    assert tokens(1) == tokens(1)
    assert tokens(1) != tokens(2)
    assert tokens(1)[1] != tokens(1)[3]  # completions of one prompt differ


@pytest.mark.parametrize("precision", [FP32, "bf16/bf16/fp32"])
def test_padding_does_not_change_a_row(precision: str) -> None:
    forward = role(a_model(), precision)
    engine, sampling = rollout(forward), Sampling(top_p=0.9)

    def first(other: list[int]) -> TokenBatch:
        batch = engine.generate([[1, 5, 6], other], sampling=sampling, max_new_tokens=8, seed=3)
        return batch.rows(slice(0, 1))

    short, padded = first([1]), first([1] * 20)

    assert short.responses() == padded.responses()
    assert short.log_probs_BS is not None
    assert padded.log_probs_BS is not None
    tolerance = 1e-5 if precision == FP32 else 0.05
    torch.testing.assert_close(
        short.log_probs_BS[short.response_mask_BS],
        padded.log_probs_BS[padded.response_mask_BS],
        rtol=0,
        atol=tolerance,
    )
    full = [token_log_probs(forward, each, sampling).sum() for each in (short, padded)]
    torch.testing.assert_close(*full, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("pad_token", [0, 2, 7])
def test_the_id_at_padding_changes_nothing(pad_token: int) -> None:
    forward = role(a_model())
    with_zero, other = (
        rollout(forward, pad_token=each).generate(
            PROMPTS, sampling=Sampling(), max_new_tokens=8, seed=1
        )
        for each in (0, pad_token)
    )

    assert with_zero.responses() == other.responses()
    assert with_zero.log_probs_BS is not None
    assert other.log_probs_BS is not None
    torch.testing.assert_close(with_zero.log_probs_BS, other.log_probs_BS)
    torch.testing.assert_close(
        token_log_probs(forward, other, Sampling()), with_zero.log_probs_BS, rtol=0, atol=1e-5
    )


def test_completions_end_with_a_stop_token_or_at_the_limit() -> None:
    engine = rollout(role(a_model()), stop_tokens=range(2, 20))

    batch = engine.generate(PROMPTS * 8, sampling=Sampling(), max_new_tokens=5, seed=1)

    for tokens in batch.responses():
        assert all(each >= 20 or each < 2 for each in tokens[:-1])
        assert 2 <= tokens[-1] < 20 or len(tokens) == 5
    lengths = {len(tokens) for tokens in batch.responses()}
    assert {1, 2} <= lengths  # an end-of-sequence token at once is a completion
    assert batch.tokens_BT.shape[1] == 6 + max(lengths)


@pytest.fixture(
    params=[
        GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=41, n_positions=64),
        MistralConfig(
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            vocab_size=41,
            sliding_window=8,
        ),
        LlamaConfig(
            hidden_size=8,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            vocab_size=41,
            tie_word_embeddings=True,
        ),
    ],
    ids=lambda config: config.model_type,
)
def other_model(request: pytest.FixtureRequest) -> torch.nn.Module:
    return build_policy(request.param, seed=0)


@pytest.mark.parametrize("precision", [FP32, "fp16/fp16/fp32", "fp32/bf16/fp32"])
def test_other_architectures_agree_with_a_full_forward_pass(
    other_model: torch.nn.Module, precision: str
) -> None:
    forward = role(other_model, precision)

    batch = rollout(forward).generate(PROMPTS, sampling=RULES[4], max_new_tokens=12, seed=1)

    assert batch.log_probs_BS is not None
    torch.testing.assert_close(
        batch.log_probs_BS,
        token_log_probs(forward, batch, RULES[4]),
        rtol=0,
        atol={"fp32": 1e-5, "fp16": 0.02, "bf16": 0.1}[precision[5:9]],
    )


def test_the_cache_has_a_type_of_its_own() -> None:
    model = a_model()

    def difference(precision: str, cache: Precision | None) -> float:
        batch = rollout(role(model, precision), cache=cache).generate(
            PROMPTS, sampling=Sampling(), max_new_tokens=8, seed=1
        )
        assert batch.log_probs_BS is not None
        exact = token_log_probs(role(model), batch, Sampling())
        return (batch.log_probs_BS - exact).abs().max().item()

    assert difference(FP32, None) < 1e-5
    assert 1e-5 < difference(FP32, Precision.FP16) < difference(FP32, Precision.BF16) < 0.3


@pytest.mark.parametrize("precision", ["fp32/bf16/fp32", "fp16/fp16/fp32"])
@pytest.mark.parametrize("cache", list(Precision))
def test_every_type_of_the_cache_goes_with_every_type_of_the_role(
    precision: str, cache: Precision
) -> None:
    engine = rollout(role(a_model(), precision), cache=cache)

    batch = engine.generate(PROMPTS, sampling=Sampling(), max_new_tokens=3, seed=1)

    assert batch.log_probs_BS is not None
    assert torch.equal(engine.rescore(batch, Sampling()), batch.log_probs_BS)


def test_new_weights_and_types_take_effect_at_the_next_batch() -> None:
    forward = role(a_model(seed=0), "bf16/bf16/fp32")
    engine = rollout(forward)
    forward.update(a_model(seed=1))
    forward.set_precision(RolePrecision.parse(FP32))

    batch, fresh = (
        each.generate(PROMPTS, sampling=Sampling(), max_new_tokens=8, seed=1)
        for each in (engine, rollout(role(a_model(seed=1))))
    )

    assert batch.responses() == fresh.responses()
    assert torch.equal(batch.log_probs_BS, fresh.log_probs_BS)  # type: ignore[arg-type]


def test_a_model_whose_logits_are_not_finite_is_named_with_its_precision() -> None:
    model = a_model()
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e30)
    generate = rollout(role(model, "fp16/fp16/fp32")).generate

    with pytest.raises(NonFiniteLogitsError, match="fp16/fp16/fp32"):
        generate(PROMPTS, sampling=Sampling(), max_new_tokens=4, seed=1)


def test_prompts_that_leave_no_room_are_refused() -> None:
    engine = rollout(role(a_model()))

    with pytest.raises(RolloutRequestError, match="prompt 0 has 60"):
        engine.generate([[1] * 60], sampling=Sampling(), max_new_tokens=5, seed=1)


def test_a_rollout_that_nothing_ends_is_refused() -> None:
    with pytest.raises(RolloutRequestError, match="no completion"):
        rollout(role(a_model()), stop_tokens=())
    with pytest.raises(RolloutRequestError, match=r"stop_tokens \[99\]"):
        rollout(role(a_model()), stop_tokens=[99])
