import math
from functools import partial

import pytest
import torch

from infrastructure.policy import Sampling
from infrastructure.policy.corrections import (
    CORRECTIONS,
    CatastrophicTokenVeto,
    Correction,
    Level,
    ProbabilityGapMask,
    RatioMask,
    TruncatedImportanceSampling,
    effective_sample_size,
)
from infrastructure.policy.losses import LossInputs, dr_grpo_loss, grpo_loss, gspo_loss
from infrastructure.policy.masked import TokenValueError

# Log-ratios: row 0 has log 4 and log 1/2, row 1 only 0, row 2 no token.
LOG_RATIO_BS = torch.tensor([[math.log(4), -math.log(2), 99.0], [0.0, 99.0, 99.0], [99.0] * 3])
MASK_BS = torch.tensor([[True, True, False], [True, False, False], [False] * 3])
MU_BS = torch.full((3, 3), math.log(0.01))


def corrected(correction, log_ratio_BS=LOG_RATIO_BS, mask_BS=MASK_BS):
    mu_BS = MU_BS[: len(mask_BS)]
    return correction(mu_BS + log_ratio_BS, mu_BS, mask_BS)


def stats_of(result):
    return {name: value.item() for name, value in result.stats.items()}


def test_statistics_by_hand():
    """Token TIS at 2: weights 2, 1/2, 1 of the ratios 4, 1/2, 1.

    Token ESS: (3.5)² / (3 * (4 + 1/4 + 1)) = 12.25 / 15.75. Sequence ratios 2 and 1:
    3² / (2 * 5) = 0.9.
    """
    result = corrected(CORRECTIONS["token-tis"])
    assert result.weights_BS.flatten().tolist() == pytest.approx([2, 0.5, 0, 1, 0, 0, 0, 0, 0])
    assert torch.equal(result.kept_BS, MASK_BS)
    assert stats_of(result) == pytest.approx(
        {
            "ratio_mean": 5.5 / 3,
            "ratio_min": 0.5,
            "ratio_max": 4.0,
            "clipped_fraction": 1 / 3,
            "dropped_fraction": 0.0,
            "dropped_sequence_fraction": 0.0,
            "weight_mean": 3.5 / 3,
            "token_ess": 12.25 / 15.75,
            "sequence_ess": 0.9,
        },
        rel=1e-5,
    )


def test_statistics_of_dropped_tokens():
    """A mask to [0.9, 1.1] drops both tokens of row 0: 2 of 3 tokens, 1 of 2 sequences."""
    result = corrected(Correction((RatioMask(low=0.9, high=1.1),)))
    stats = stats_of(result)
    assert result.weights_BS.sum() == 1
    assert stats["dropped_fraction"] == pytest.approx(2 / 3)
    assert stats["dropped_sequence_fraction"] == 0.5
    assert stats["token_ess"] == pytest.approx(1 / 3)


def test_rules_combine():
    """Weights of one rule; a token goes if any rule drops it."""
    rules = (
        TruncatedImportanceSampling(high=3.0),
        RatioMask(low=0.9, high=5.0),
        CatastrophicTokenVeto(),
    )
    result = corrected(Correction(rules))
    assert result.weights_BS[0].tolist() == pytest.approx([3.0, 0.0, 0.0])
    assert result.weights_BS[1].tolist() == [1.0, 0.0, 0.0]


def test_a_truncated_token_that_is_dropped_counts_as_dropped():
    rules = (TruncatedImportanceSampling(high=3.0), RatioMask(low=0.0, high=3.5))
    stats = stats_of(corrected(Correction(rules)))
    assert stats["clipped_fraction"] == 0
    assert stats["dropped_fraction"] == pytest.approx(1 / 3)


def test_two_weights_are_refused():
    with pytest.raises(ValueError, match="TruncatedImportanceSampling and RatioMask"):
        Correction((TruncatedImportanceSampling(), RatioMask(weighted=True)))


def test_without_rules_nothing_changes_and_everything_is_measured():
    result = corrected(CORRECTIONS["none"])
    assert torch.equal(result.weights_BS, MASK_BS.float())
    assert stats_of(result)["ratio_max"] == pytest.approx(4.0)


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_mismatch_no_correction(name, dtype):
    log_probs_BS = torch.rand(4, 7, dtype=dtype).log()
    mask_BS = torch.rand(4, 7) < 0.7
    result = CORRECTIONS[name](log_probs_BS, log_probs_BS.clone(), mask_BS)
    assert torch.equal(result.weights_BS, mask_BS.to(dtype))
    assert torch.equal(result.kept_BS, mask_BS)
    assert stats_of(result)["token_ess"] == pytest.approx(1.0)


EXTREMES = {
    "up": torch.full((2, 3), 50.0),
    "down": torch.full((2, 3), -50.0),
    "mixed": torch.tensor([[50.0, -50.0, 0.0], [90.0, 90.0, 90.0]]),
    "impossible": torch.tensor([[-math.inf, 0.0, 0.0], [math.inf, 0.0, 0.0]]),
}


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize("kind", EXTREMES)
@pytest.mark.parametrize("mask", [[True, True, True], [True, False, False], [False] * 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extremes_are_finite(name, kind, mask, dtype):
    mask_BS = torch.tensor([mask, [False, True, True]])
    log_ratio_BS = EXTREMES[kind].to(dtype)
    mu_BS = torch.full_like(log_ratio_BS, -60.0)
    result = CORRECTIONS[name](mu_BS + log_ratio_BS, mu_BS, mask_BS)
    assert result.weights_BS.isfinite().all()
    assert (result.weights_BS[~mask_BS] == 0).all()
    assert all(value.isfinite() for value in result.stats.values())


@pytest.mark.parametrize("name", [name for name in CORRECTIONS if name != "none"])
def test_a_catastrophic_mismatch_is_bounded_by_every_correction(name):
    """A ratio of e^-50 from a token that the rollout was nearly certain of."""
    mu_BS = torch.tensor([[-1e-3, -1.0]])
    result = CORRECTIONS[name](
        mu_BS + torch.tensor([[-50.0, 0.0]]), mu_BS, torch.tensor([[True, True]])
    )
    assert result.weights_BS[0, 0] < 1e-8


@pytest.mark.parametrize("name", CORRECTIONS)
def test_nan_reaches_the_loss(name):
    """Comparisons with NaN are false: a mask alone would keep the token at weight 1."""
    log_ratio_BS = torch.tensor([[math.nan, 0.0, 0.0], [0.0, 0.0, 0.0]])
    mask_BS = torch.ones(2, 3, dtype=torch.bool)
    weights_BS = corrected(CORRECTIONS[name], log_ratio_BS, mask_BS).weights_BS
    assert weights_BS[0, 0].isnan()
    assert weights_BS[1].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_refused(dtype):
    with pytest.raises(TokenValueError, match="rollout_log_probs_BS is"):
        Correction()(MU_BS, MU_BS.to(dtype), MASK_BS)


def test_no_gradient_flows_through_weights():
    log_probs_BS = (MU_BS + LOG_RATIO_BS).requires_grad_()
    result = CORRECTIONS["icepop"](log_probs_BS, MU_BS, MASK_BS)
    assert not result.weights_BS.requires_grad
    assert not any(value.requires_grad for value in result.stats.values())


def test_advantages_reach_the_rule_that_needs_them():
    correction = Correction((ProbabilityGapMask(one_sided=True),))
    pi_BS, mu_BS = torch.tensor([[0.9, 0.9]]).log(), torch.tensor([[0.5, 0.5]]).log()
    mask_BS = torch.ones(1, 2, dtype=torch.bool)
    advantages_BS = torch.tensor([[1.0, -1.0]])
    result = correction(pi_BS, mu_BS, mask_BS, advantages_BS=advantages_BS)
    assert result.kept_BS.tolist() == [[False, True]]


def test_weights_need_the_distribution_that_was_sampled_from():
    """With top-k or top-p, μ is renormalised over the tokens that were left.

    The ratio of the full to the truncated distribution is the probability that was left, for each
    token (trl#6789): here 0.9. With the same shaped logits on both sides it is 1.
    """
    logits_V = torch.tensor([0.6, 0.3, 0.06, 0.04]).log()
    shaped_V = Sampling(top_p=0.85).shaped_logits(logits_V)
    mu_BS = shaped_V.log_softmax(0)[None, :2]
    mask_BS = torch.ones(1, 2, dtype=torch.bool)
    biased = CORRECTIONS["token-tis"](logits_V.log_softmax(0)[None, :2], mu_BS, mask_BS)
    assert biased.weights_BS[0].tolist() == pytest.approx([0.9, 0.9])
    assert CORRECTIONS["token-tis"](mu_BS, mu_BS, mask_BS).weights_BS.tolist() == [[1.0, 1.0]]


def test_effective_sample_size():
    """Weights 1, 1 and 2: 16 / (3 * 6). One huge weight leaves one sample of three."""
    all_three = torch.tensor([True, True, True])
    weights = torch.tensor([1.0, 1.0, 2.0])
    assert effective_sample_size(weights.log(), all_three).item() == pytest.approx(16 / 18)
    huge = torch.tensor([0.0, 0.0, 5000.0])
    assert effective_sample_size(huge, all_three).item() == pytest.approx(1 / 3)
    assert effective_sample_size(-huge, all_three).item() == pytest.approx(2 / 3)
    assert effective_sample_size(weights.log(), ~all_three).item() == 0
    assert effective_sample_size(torch.full((3,), -math.inf), all_three).item() == 0


def test_names_say_the_thresholds_that_others_ship():
    assert CORRECTIONS["icepop"].rules == (RatioMask(low=0.5, high=5.0, weighted=True),)
    assert CORRECTIONS["sequence-mask"].rules[0].level is Level.SEQUENCE
    assert CORRECTIONS["geometric-mask"].rules[0].high == 1.002
    assert "unknown" not in CORRECTIONS


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("loss_of", [grpo_loss, partial(dr_grpo_loss, max_length=1), gspo_loss])
def test_weights_remove_the_bias_of_the_mismatch(level, loss_of):
    """Four one-token answers as μ = (1/2, 1/4, 1/4) samples them: tokens 0, 0, 1, 2.

    The exact gradient is that of -Σ π A. With weights π/μ the batch has it; without, it does not.
    """
    logits_V = torch.tensor([0.2, 0.9, -0.4], dtype=torch.float64, requires_grad=True)
    rewards_V = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)
    tokens_B = torch.tensor([0, 0, 1, 2])
    mu_B1 = torch.tensor([0.5, 0.5, 0.25, 0.25], dtype=torch.float64).log()[:, None]
    log_probs_B1 = logits_V.log_softmax(0)[tokens_B][:, None]
    mask_B1 = torch.ones(4, 1, dtype=torch.bool)
    rule = TruncatedImportanceSampling(level=level, high=100.0)

    def gradient(rules):
        inputs = LossInputs(
            log_probs_BS=log_probs_B1,
            old_log_probs_BS=log_probs_B1.detach(),
            advantages=rewards_V[tokens_B],
            mask_BS=mask_B1,
            correction=Correction(rules)(log_probs_B1, mu_B1, mask_B1),
        )
        return torch.autograd.grad(loss_of(inputs).loss, logits_V, retain_graph=True)[0]

    (exact_V,) = torch.autograd.grad(-(logits_V.softmax(0) * rewards_V).sum(), logits_V)
    assert torch.allclose(gradient((rule,)), exact_V)
    assert (gradient(()) - exact_V).abs().max() > 0.1


def test_an_effective_sample_size_is_at_most_one() -> None:
    """Without a bound, rounding exceeds it for some of these."""
    for seed in range(50):
        log_weights = torch.randn(2, generator=torch.Generator().manual_seed(seed)) * 1e-4
        size = effective_sample_size(log_weights, torch.tensor([True, True])).item()
        assert 1 - 1e-6 < size <= 1.0
