"""What the experiments must find where the answer is known."""

import pytest
import torch
from torch import nn

from benchmarks.policy.subjects import Subject
from benchmarks.precision_lab.hypotheses import value_starvation
from benchmarks.precision_lab.hypotheses.kl_collapse import measure_collapse
from benchmarks.precision_lab.hypotheses.material import Effort, Material, _material
from benchmarks.precision_lab.hypotheses.reference_drift import growth
from benchmarks.precision_lab.hypotheses.reward_quantization import (
    fitted_reward_model,
    measure_quantization,
    rewards_in,
)
from benchmarks.precision_lab.hypotheses.value_starvation import train_head
from infrastructure.events.role_precision import RolePrecision
from infrastructure.policy.models import build_policy, small_config, special_tokens
from infrastructure.policy.tokenizer import CharacterTokenizer

pytestmark = pytest.mark.process  # trains for seconds

EFFORT = Effort(
    prompts=4, group=3, new_tokens=10, texts=2, text_tokens=20, steps=0, gradient_rows=4
)


@pytest.fixture(scope="module")
def material() -> Material:
    tokenizer = CharacterTokenizer("0123456789+= ")
    model = build_policy(small_config(tokenizer, width=16, layers=1, heads=2), seed=0)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(20)
    subject = Subject(
        name="tiny",
        model=model,
        special=special_tokens(model, tokenizer),
        prompts=[tokenizer.encode(each) for each in ("1+1=", "12+30=", "7", "5+5")],
    )
    tokens = tokenizer.encode("1+1=2 12+30=42 " * 5, add_special_tokens=False)
    return _material(0, subject, EFFORT, tokens)


def test_the_policy_is_moved_to_the_divergence_and_the_reference_is_not(
    material: Material,
) -> None:
    before = [each.detach().clone() for each in material.model.parameters()]
    figures = measure_collapse(material, (1e-4, 1e-2))
    for wanted in (1e-4, 1e-2):
        assert 0.5 < figures[f"exact penalty at {wanted:g}"] / wanted < 2
        assert abs(figures[f"fp32 KL at {wanted:g}: lost share of the penalty"]) < 0.05
    near = [figures[f"bf16 KL at {at}: log_ratio_near_zero_frac"] for at in ("0.0001", "0.01")]
    assert near[0] > near[1]
    for now, then in zip(material.model.parameters(), before, strict=True):
        assert torch.equal(now, then)


def test_growth_tells_independent_errors_from_common_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    independent = torch.randn(400, 256, generator=generator).double().cumsum(1).abs()
    assert growth(independent) == pytest.approx(0.5, abs=0.05)
    assert growth(torch.ones(4, 100).cumsum(1)) == pytest.approx(1.0)


def test_a_result_in_bf16_ties_rewards_and_a_head_in_fp32_does_not(material: Material) -> None:
    model = fitted_reward_model(material)
    result = rewards_in(model, material.completions, "fp32/fp32/bf16", fp32_head=False)
    assert result.dtype == torch.bfloat16
    exact = rewards_in(model, material.completions, "fp32/fp32/fp32", fp32_head=False)
    assert torch.equal(exact.bfloat16(), result)
    kept = rewards_in(model, material.completions, "bf16/bf16/fp32", fp32_head=True)
    assert not torch.equal(kept, kept.bfloat16().float())  # not rounded to BF16
    figures = measure_quantization(material)
    tied = figures["only the result in bf16: share of pairs made equal"]
    assert tied == pytest.approx(figures["bf16 cast: share of pairs made equal"], abs=1e-6)


def test_a_head_far_from_zero_cannot_move_in_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    features_NH = torch.randn(64, 4, generator=generator)
    returns_N = nn.functional.normalize(features_NH.sum(1), dim=0) * 8

    def explained(types: str, offset: float) -> float:
        return train_head(
            features_NH,
            returns_N,
            RolePrecision.parse(types),
            scale=1.0,
            offset=offset,
            seed=0,
        ).explained

    monkeypatch.setattr(value_starvation, "_STEPS", 60)
    assert explained("fp32/fp32/fp32", 1e4) > 0.9
    assert explained("bf16/bf16/bf16", 0.0) > 0.9
    assert explained("bf16/bf16/bf16", 1e4) == 0.0
