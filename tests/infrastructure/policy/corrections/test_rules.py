import math

import pytest
import torch

from infrastructure.policy.corrections import (
    BinaryKLMask,
    CatastrophicTokenVeto,
    Level,
    ProbabilityGapMask,
    RatioMask,
    TruncatedImportanceSampling,
)
from infrastructure.policy.corrections.rules import TokenEvidence
from infrastructure.policy.masked import TokenValueError, masked

# Ratios 4, 1/2 and 1; one more token is masked. Product 2, geometric mean 2^(1/3) = 1.26.
RATIOS = [4.0, 0.5, 1.0, 99.0]


def evidence_of(ratios, mask=(True, True, True, False), *, mu=0.01, advantages=None):
    """Evidence of one sequence in which the rollout gave each token the probability *mu*."""
    mask_BS = torch.tensor([mask[: len(ratios)]])
    mu_BS = torch.full((1, len(ratios)), mu, dtype=torch.float32).log()
    pi_BS = mu_BS + torch.tensor([ratios]).log()
    return TokenEvidence(
        masked(pi_BS - mu_BS, mask_BS),
        masked(pi_BS, mask_BS),
        masked(mu_BS, mask_BS),
        mask_BS,
        None if advantages is None else torch.tensor([advantages]),
    )


def dropped(rule, ratios, **options):
    evidence = evidence_of(ratios, **options)
    verdict = rule.judge(evidence)
    return (verdict.dropped_BS & evidence.mask_BS)[0].tolist()


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Level.TOKEN, [2.0, 0.5, 1.0]),
        (Level.SEQUENCE, [2.0, 2.0, 2.0]),
        (Level.GEOMETRIC, [2 ** (1 / 3)] * 3),
    ],
)
def test_truncated_importance_sampling(level, expected):
    verdict = TruncatedImportanceSampling(level=level, high=2.0).judge(evidence_of(RATIOS))
    assert verdict.weights_BS[0, :3].tolist() == pytest.approx(expected)
    assert not verdict.dropped_BS.any()
    # The product is 2 up to rounding: whether that is above 2 does not matter.
    if level is not Level.SEQUENCE:
        assert verdict.clipped_BS[0, :3].tolist() == [level is Level.TOKEN, False, False]


def test_weights_may_be_truncated_below():
    rule = TruncatedImportanceSampling(low=0.8, high=5.0)
    assert rule.judge(evidence_of(RATIOS)).weights_BS[0, :3].tolist() == pytest.approx([4, 0.8, 1])


def test_a_small_bias_of_each_token_is_a_large_one_of_the_sequence():
    """0.012 a token: over 100 tokens the ratio is exp(1.2) = 3.32 (trl#4772)."""
    evidence = evidence_of([math.exp(0.012)] * 100, [True] * 100)
    ratios = [
        level.log_ratio(evidence.log_ratio_BS, evidence.mask_BS)[0, 0].exp() for level in Level
    ]
    assert [ratio.item() for ratio in ratios] == pytest.approx([1.012, 3.320, 1.012], abs=1e-3)
    assert RatioMask(level=Level.SEQUENCE, low=0.0, high=3.0).judge(evidence).dropped_BS.all()
    assert RatioMask(level=Level.GEOMETRIC, low=0.999, high=1.002).judge(evidence).dropped_BS.all()
    assert not RatioMask().judge(evidence).dropped_BS.any()


def test_ratio_mask_per_token():
    rule = RatioMask(low=0.6, high=3.0, weighted=True)
    assert dropped(rule, RATIOS) == [True, True, False, False]
    assert rule.judge(evidence_of(RATIOS)).weights_BS[0, 2] == 1
    assert RatioMask(low=0.6, high=3.0).judge(evidence_of(RATIOS)).weights_BS is None


def test_ratio_mask_per_sequence_is_all_or_nothing():
    low_ratio = [0.1, 0.1, 1.0]
    assert dropped(RatioMask(level=Level.SEQUENCE, low=0.5, high=1.9), RATIOS)[:3] == [True] * 3
    assert dropped(RatioMask(level=Level.SEQUENCE, low=0.5, high=2.1), RATIOS)[:3] == [False] * 3
    assert dropped(RatioMask(level=Level.SEQUENCE, low=0.0, high=3.0), low_ratio) == [False] * 3
    assert dropped(RatioMask(level=Level.SEQUENCE, low=0.5, high=3.0), low_ratio) == [True] * 3


def test_geometric_mask_judges_short_and_long_alike():
    """Ratios of 1.0015 are kept for any length; as a product, 2,000 of them are a ratio of 20."""
    rule = RatioMask(level=Level.GEOMETRIC, low=0.999, high=1.002)
    for length in (2, 2000):
        assert not any(dropped(rule, [1.0015] * length, mask=[True] * length))


def test_one_catastrophic_token_vetoes_its_sequence():
    rule = CatastrophicTokenVeto()
    assert dropped(rule, [1.0, 0.9e-4, 1.0]) == [True] * 3
    assert dropped(rule, [1.0, 1.1e-4, 1.0]) == [False] * 3
    assert dropped(rule, [1.0, 1.0, 1e-9], mask=(True, True, False)) == [False] * 3


def test_binary_kl_by_hand():
    """π = 0.9, μ = 0.3. D(π, μ) = 0.9 log 3 + 0.1 log(1/7) = 0.794; D(μ, π) = 1.032."""
    forward = 0.9 * math.log(3) + 0.1 * math.log(1 / 7)
    backward = 0.3 * math.log(1 / 3) + 0.7 * math.log(7)
    assert (forward, backward) == pytest.approx((0.794, 1.033), abs=1e-3)
    for ratio, mu in ((3.0, 0.3), (1 / 3, 0.9)):  # the larger of the two, in either order
        assert dropped(BinaryKLMask(threshold=backward - 1e-4), [ratio], mu=mu) == [True]
        assert dropped(BinaryKLMask(threshold=backward + 1e-4), [ratio], mu=mu) == [False]


def test_binary_kl_is_lenient_where_both_are_small_and_strict_where_one_is_certain():
    assert dropped(BinaryKLMask(), [8.0], mu=1e-4) == [False]  # 8e-4 * log 8, far below 2
    assert dropped(BinaryKLMask(), [1e-4], mu=1.0) == [True]


@pytest.mark.parametrize("log_pi", [0.0, -1e-9, -1e-7, -50.0, -200.0, -math.inf])
@pytest.mark.parametrize("log_mu", [0.0, -1e-7, -50.0])
def test_binary_kl_of_certain_and_impossible_tokens_is_a_decision(log_pi, log_mu):
    """1 - p is 0 in float32 for a certain token, and 0 log(0 / 0) would be NaN: never dropped."""
    pi_BS, mu_BS = torch.tensor([[log_pi]]), torch.tensor([[log_mu]])
    mask_BS = torch.ones(1, 1, dtype=torch.bool)
    verdict = BinaryKLMask().judge(TokenEvidence(pi_BS - mu_BS, pi_BS, mu_BS, mask_BS, None))
    assert verdict.dropped_BS.item() == ((log_pi < -1) != (log_mu < -1))


def test_probability_gap():
    """|π - μ| with μ = 0.5: 0.25, 0.15 and 0.35."""
    ratios = [1.5, 0.7, 0.3]
    assert dropped(ProbabilityGapMask(), ratios, mu=0.5) == [True, False, True]
    assert dropped(ProbabilityGapMask(threshold=0.3), ratios, mu=0.5) == [False, False, True]


def test_one_sided_probability_gap_drops_what_moved_with_its_advantage():
    """DPPO: up with A > 0, down with A < 0. The others a step would bring back."""
    rule = ProbabilityGapMask(one_sided=True)
    ratios = [1.5, 1.5, 0.5, 0.5]
    options = {"mu": 0.5, "mask": (True,) * 4, "advantages": [1.0, -1.0, 1.0, -1.0]}
    assert dropped(rule, ratios, **options) == [True, False, False, True]
    with pytest.raises(TokenValueError, match="needs advantages"):
        rule.judge(evidence_of(ratios))


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        (TruncatedImportanceSampling, {"low": 1.1}),
        (TruncatedImportanceSampling, {"high": 0.9}),
        (TruncatedImportanceSampling, {"high": math.inf}),
        (RatioMask, {"low": -0.1}),
        (RatioMask, {"high": math.nan}),
        (CatastrophicTokenVeto, {"threshold": 0.0}),
        (BinaryKLMask, {"threshold": -1.0}),
        (ProbabilityGapMask, {"threshold": math.nan}),
    ],
)
def test_impossible_thresholds_are_refused(rule, options):
    with pytest.raises(ValueError, match="got"):
        rule(**options)
