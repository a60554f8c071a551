import numpy as np
import pytest
import torch

from benchmarks.policy.bootstrap import PromptBootstrap, interval


def test_prompts_are_drawn_with_all_their_rows() -> None:
    bootstrap = PromptBootstrap(prompts=4, group=3, resamples=20, seed=0)

    for rows in bootstrap.rows():
        assert len(rows) == 12
        prompts = rows.reshape(4, 3) // 3
        assert (prompts == prompts[:, :1]).all()


def test_the_interval_of_a_mean_is_as_wide_as_theory_says() -> None:
    values = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bootstrap = PromptBootstrap(prompts=400, group=1, resamples=2000, seed=0)

    found = bootstrap.interval(lambda rows: values[rows].mean().item())

    assert found.figure == pytest.approx(values.mean().item())
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.1)


def test_an_interval_is_printed_with_three_digits() -> None:
    assert str(interval(1.23456, np.linspace(1, 2, 41))) == "1.23 [1.02, 1.98]"
