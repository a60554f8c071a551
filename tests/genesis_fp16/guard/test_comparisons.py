"""Loss drift, underflow and speed: only what several comparisons agree on."""

import math

import pytest

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.guard.comparisons import Comparisons

SETTINGS = GuardSettings()


@pytest.fixture
def add():
    comparisons = Comparisons()

    def add(event, accelerator: bool = True) -> str | None:
        found = comparisons.add(event, SETTINGS, accelerator=accelerator)
        return found.trigger if found else None

    return add


@pytest.mark.parametrize("loss", [0.53, 0.47, 5.0, math.inf, math.nan])
def test_a_loss_off_by_more_than_the_limit(add, compared, loss) -> None:
    event = compared(loss=loss)
    assert [add(event) for _ in range(3)] == [None, None, "loss_drift"]


def test_what_is_within_the_limit_is_no_drift(add, compared) -> None:
    assert [add(compared(loss=loss)) for loss in (0.52, 0.48, 0.5) * 5] == [None] * 15


def test_one_good_comparison_ends_the_row(add, compared) -> None:
    bad, good = compared(loss=0.6), compared()
    assert [add(each) for each in (bad, bad, good, bad, bad, good)] == [None] * 6


def test_a_comparison_that_says_nothing_neither_counts_nor_clears(add, compared) -> None:
    bad = compared(loss=0.6)
    for dumb in (compared(fp32_loss=math.nan), compared(loss=9.0, comparable=False)):
        assert add(dumb) is None
    assert [add(bad), add(bad)] == [None, None]
    assert add(compared(fp32_loss=math.inf, loss=math.nan)) is None
    assert add(bad) == "loss_drift"


def test_a_loss_that_is_learnt_away_does_not_drift(add, compared) -> None:
    """Far below where it began, the rounding of its last digits is all there is.

    The numbers are of healthy agents, as a daemon had resumed them.
    """
    for half, fp32 in ((1.27684e-4, 8.2064e-5), (6.38711e-5, 3.48637e-5)):
        learnt = compared(loss=half, fp32_loss=fp32, largest_fp32_loss=0.3445)
        assert [add(learnt) for _ in range(5)] == [None] * 5
    wrong = compared(loss=3e-4, fp32_loss=1e-4, largest_fp32_loss=0.3445)
    assert [add(wrong) for _ in range(3)] == [None, None, "loss_drift"]


def test_a_drift_says_what_it_is_a_share_of(compared) -> None:
    said = []
    for event in (
        compared(loss=3e-4, fp32_loss=1e-4, largest_fp32_loss=0.25),
        compared(loss=0.6, fp32_loss=0.5, largest_fp32_loss=0.7),
    ):
        comparisons = Comparisons()
        found = [comparisons.add(event, SETTINGS, accelerator=False) for _ in range(3)][-1]
        said.append(found.said if found else "")
    assert "is 0.0003 where FP32 has 0.0001: the difference is 8.0% of 0.0025 (1% of the" in said[0]
    assert "is 0.6 where FP32 has 0.5: the difference is 20.0% of 0.5 (the FP32 loss)" in said[1]


def test_a_loss_of_zero_is_no_drift(add, compared) -> None:
    assert [add(compared(loss=0.0, fp32_loss=0.0)) for _ in range(4)] == [None] * 4


def test_gradients_lost_to_zero(add, compared) -> None:
    event = compared(underflow=0.9, gradient_error=0.8)
    assert [add(event) for _ in range(3)] == [None, None, "underflow"]


@pytest.mark.parametrize(
    "harmless",
    [
        {"underflow": 0.9, "gradient_error": 0.01},  # the lost ones were next to nothing
        {"underflow": 0.1, "gradient_error": 0.8},  # whatever is wrong, it is not this
        {"underflow": None, "gradient_error": None},
        {"underflow": 0.9, "gradient_error": math.inf},  # an overflow
        {"underflow": 0.9, "gradient_error": 0.8, "comparable": False},
    ],
)
def test_underflow_without_harm(add, compared, harmless) -> None:
    assert [add(compared(**harmless)) for _ in range(5)] == [None] * 5


def test_slower_than_fp32_on_an_accelerator(add, compared) -> None:
    slow = compared(seconds=0.011, fp32_seconds=0.010)
    assert [add(slow) for _ in range(3)] == [None, None, "slower_than_fp32"]


def test_a_cpu_may_be_slower(add, compared) -> None:
    slow = compared(seconds=1.0, fp32_seconds=0.010)
    assert [add(slow, accelerator=False) for _ in range(5)] == [None] * 5


def test_one_slow_comparison_among_fast_ones_is_noise(add, compared) -> None:
    slow, fast = compared(seconds=9.0), compared()
    assert [add(each) for each in (fast, slow, fast, fast, slow, fast)] == [None] * 6


def test_equally_fast_is_not_slower(add, compared) -> None:
    equal = compared(seconds=0.0101, fp32_seconds=0.010)
    assert [add(equal) for _ in range(6)] == [None] * 6
