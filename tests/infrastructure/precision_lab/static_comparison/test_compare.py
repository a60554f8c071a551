"""The static comparison: what it measures, what it leaves alone, what it refuses."""

from __future__ import annotations

import csv
import io
import math

import pytest
import torch
from torch.nn import Module

from infrastructure.policy import TokenBatch
from infrastructure.policy.models import build_policy, small_config
from infrastructure.policy.tokenizer import CharacterTokenizer
from infrastructure.precision_lab.static_comparison.compare import (
    COLUMNS,
    ComparisonError,
    ComparisonResult,
    ComparisonRow,
    compare,
)
from infrastructure.precision_lab.weights_hash import weights_sha256

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
TOKENIZER = CharacterTokenizer("abcdefgh")


@pytest.fixture
def model() -> Module:
    """A model whose logits are as large as those of one that was trained."""
    config = small_config(TOKENIZER, width=16, layers=1, heads=2, context=40)
    config.initializer_range = 0.6
    return build_policy(config, seed=3).eval()


def sequences(lengths: list[int], *, seed: int = 0, prompt: int = 2) -> TokenBatch:
    """One row for each length, with random tokens; the first *prompt* are not measured."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, 11, (n,), generator=generator).tolist() for n in lengths]
    return TokenBatch.from_sequences(
        [row[:prompt] for row in rows], [row[prompt:] for row in rows], pad_token=0
    )


def row(
    result: ComparisonResult, dtype: str, temperature: float = 1.0, length: int = 24
) -> ComparisonRow:
    return next(
        each
        for each in result.by_length
        if (each.dtype, each.temperature, each.seq_length) == (dtype, temperature, length)
    )


def test_simulated_casts_and_real_kernels_are_told_apart(model: Module) -> None:
    batch = sequences([24] * 8)
    result = compare(model, {24: batch}, temperatures=(0.5, 1.0), device=CPU)
    with torch.no_grad():
        logits = model(input_ids=batch.tokens_BT, use_cache=False).logits
        whole = model.bfloat16()(input_ids=batch.tokens_BT, use_cache=False).logits.float()
    taken = batch.tokens_BT[:, 2:, None]

    def log_probs(values: torch.Tensor) -> torch.Tensor:
        return (values[:, 1:-1] / 0.5).log_softmax(-1).gather(-1, taken).double()

    simulated = (log_probs(logits.bfloat16().float()) - log_probs(logits)).abs()
    real = (log_probs(whole) - log_probs(logits)).abs()
    found = row(result, "bf16", 0.5)
    assert found.tokens == 8 * 22
    assert found.simulated_logp_error_mean == pytest.approx(simulated.mean().item(), rel=1e-3)
    assert found.simulated_logp_error_max == pytest.approx(simulated.max().item(), rel=1e-3)
    assert found.real_logp_error_mean == pytest.approx(real.mean().item(), rel=0.05)
    for each in result.by_length + result.by_position:
        assert None not in (each.real_logp_error_mean, each.simulated_logp_error_mean)
        difference = each.real_logp_error_mean - each.simulated_logp_error_mean
        assert each.kernel_contribution == difference
    bf16, fp16 = row(result, "bf16"), row(result, "fp16")
    assert bf16.simulated_logp_error_mean is not None
    assert fp16.simulated_logp_error_mean is not None
    assert 4 < bf16.simulated_logp_error_mean / fp16.simulated_logp_error_mean < 16  # three bits
    assert bf16.real_kl is not None
    assert fp16.real_kl is not None
    assert 10 < bf16.real_kl / fp16.real_kl < 300


def test_the_fp32_reference_is_never_touched(model: Module) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = {24: sequences([24] * 4), 30: sequences([30] * 4)}
    first = compare(model, batches, dtypes=("bf16", "fp16"), device=CPU)
    second = compare(model, batches, dtypes=("fp16", "bf16"), device=CPU)
    assert row(first, "bf16", length=30) == row(second, "bf16", length=30)
    assert row(first, "fp16") == row(second, "fp16")
    for name, tensor in model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[name])
    assert first.weights_sha256 == weights_sha256({"policy": model})


def test_padding_and_prompts_are_not_measured(model: Module) -> None:
    lengths = [24, 9, 15, 4]
    together = sequences(lengths)
    alone = [together.rows(slice(n, n + 1)) for n in range(len(lengths))]
    trimmed = [
        TokenBatch.from_sequences(
            [each.tokens_BT[0, :2].tolist()], [each.tokens_BT[0, 2:length].tolist()], pad_token=0
        )
        for each, length in zip(alone, lengths, strict=True)
    ]
    found = row(compare(model, {24: together}, device=CPU), "bf16")
    each = [row(compare(model, {24: batch}, device=CPU), "bf16") for batch in trimmed]
    assert found.tokens == sum(one.tokens for one in each) == sum(lengths) - 2 * len(lengths)
    mean = sum(one.tokens * (one.simulated_logp_error_mean or 0.0) for one in each) / found.tokens
    assert found.simulated_logp_error_mean == pytest.approx(mean, rel=1e-4)


def test_positions_partition_the_tokens(model: Module) -> None:
    result = compare(model, {24: sequences([24, 10])}, dtypes=("bf16",), device=CPU)
    spans = [(each.first_position, each.last_position) for each in result.by_position]
    assert spans == [(2, 3), (4, 7), (8, 15), (16, 23)]
    assert [each.tokens for each in result.by_position] == [4, 8, 10, 8]
    assert sum(each.tokens for each in result.by_position) == row(result, "bf16").tokens


def test_a_sequence_adds_up_the_signed_errors(model: Module) -> None:
    batch = sequences([24])
    result = compare(model, {24: batch}, dtypes=("bf16",), device=CPU)
    found = row(result, "bf16")
    assert found.real_logp_bias is not None
    expected = abs(found.real_logp_bias * found.tokens)
    assert result.sequence_error["bf16", 1.0, 24] == pytest.approx(expected)


def test_logits_that_overflow_are_counted_and_poison_nothing(model: Module) -> None:
    with torch.no_grad():
        model.lm_head.weight[7:] *= 1e6  # logits of some tokens beyond the range of FP16
    result = compare(model, {24: sequences([24] * 4)}, temperatures=(1e5,), device=CPU)
    fp16, bf16 = row(result, "fp16", 1e5), row(result, "bf16", 1e5)
    assert fp16.nonfinite_tokens == fp16.tokens == 4 * 22
    assert fp16.real_logp_error_mean is fp16.kernel_contribution is fp16.real_kl is None
    assert bf16.nonfinite_tokens == 0
    assert bf16.real_kl is not None
    assert math.isfinite(bf16.real_kl)
    rows = list(csv.DictReader(io.StringIO(result.to_csv())))
    assert tuple(rows[0]) == COLUMNS
    assert {each["real_kl"] for each in rows if each["dtype"] == "fp16"} == {""}


def test_what_cannot_be_measured_is_refused(model: Module) -> None:
    short = sequences([24])
    with pytest.raises(ComparisonError, match="at least one"):
        compare(model, {24: short}, dtypes=(), device=CPU)
    with pytest.raises(ValueError, match="temperature"):
        compare(model, {24: short}, temperatures=(0.0,), device=CPU)
    with torch.no_grad():
        model.lm_head.weight[5, 0] = float("nan")
    with pytest.raises(ComparisonError, match="float32 model itself"):
        compare(model, {24: short}, device=CPU)
