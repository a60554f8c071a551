from pathlib import Path

import numpy as np
import pytest

from benchmarks.policy.factorial import CELLS, HEADS, run_factorial, shares_of_variance
from benchmarks.policy.scores import Kept
from benchmarks.policy.subjects import Subject


def test_shares_of_variance_by_hand() -> None:
    # 3 for BF16 and 1 for the cache: variances 9/4 and 1/4, and nothing else.
    values = [3.0 * (c.half == "bf16") + 1.0 * (c.forward == "cached") for c in CELLS]

    shares = shares_of_variance(np.array(values)[:, None])

    assert shares["half"] == pytest.approx([0.9])
    assert shares["forward"] == pytest.approx([0.1])
    for name in ("shape", "head", "sampling", "interactions"):
        assert shares[name] == pytest.approx([0.0])


def test_what_needs_two_causes_at_once_is_an_interaction() -> None:
    values = [1.0 if (c.half == "bf16") == (c.head == "both") else 0.0 for c in CELLS]

    shares = shares_of_variance(np.array(values)[:, None])

    assert shares["half"] == pytest.approx([0.25])
    assert shares["interactions"] == pytest.approx([0.75])


@pytest.mark.process
def test_the_half_type_explains_most(subject: Subject, tmp_path: Path) -> None:
    result = run_factorial(subject, Kept(tmp_path, {}), new_tokens=8, group=3, seed=0, resamples=10)

    assert sum(each.figure for each in result.shares.values()) == pytest.approx(1)
    assert result.shares["half"].figure > 0.5
    assert result.changes["fp16", "both sides in bf16"].figure > 20
    assert result.changes["bf16", "both sides in fp16"].figure < 1 / 20
    assert set(result.heads) == {(half, head) for half in ("fp16", "bf16") for head in HEADS}
    assert 0 < result.aligned["fp16"].figure < result.aligned["bf16"].figure
    assert all(each.figure < 1e-11 for each in result.floor.values())
    assert result.bias.figure > 1e-4  # far above any rounding
