from __future__ import annotations

import pytest

from agents.policy.comparison import paired_difference


def test_the_interval_covers_the_difference_and_pairing_narrows_it() -> None:
    old = [float(n % 2) for n in range(200)]
    new = [1.0 if n < 20 else each for n, each in enumerate(old)]
    gain = paired_difference(new, old)
    assert gain.mean == pytest.approx(0.05)
    assert 0.0 < gain.low < gain.mean < gain.high < 0.1
    shuffled = paired_difference(new, old[1:] + old[:1])
    assert shuffled.low < 0.0 < shuffled.high
    assert paired_difference(old, old) == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match="200 and 3"):
        paired_difference(old, old[:3])
