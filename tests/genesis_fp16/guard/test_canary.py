"""A share of runs: deterministic, even, exact."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.guard.canary import may_run_in_half


def canaries(share: float, runs: int = 20) -> list[int]:
    settings = GuardSettings(canary_share=share)
    return [number for number in range(1, runs + 1) if may_run_in_half("a", number, settings)]


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.0, []), (0.1, [1, 11]), (0.25, [1, 5, 9, 13, 17]), (1.0, list(range(1, 21)))],
)
def test_the_first_run_of_a_share_is_a_canary(share: float, expected: list[int]) -> None:
    assert canaries(share) == expected


@given(st.integers(0, 1000), st.integers(1, 500))
def test_the_share_is_kept_to_within_one_run(per_mille: int, runs: int) -> None:
    found = len(canaries(per_mille / 1000, runs))
    assert found == -(-runs * per_mille // 1000)


def test_only_agents_that_are_listed() -> None:
    settings = GuardSettings(canary_agents="se-darwin, b")
    assert [may_run_in_half(name, 1, settings) for name in ("se-darwin", "b", "c")] == [1, 1, 0]
