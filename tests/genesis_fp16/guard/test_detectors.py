"""Overflows, comparisons, paired runs, and one agent's events as the guard observes them."""

import math
import random

import pytest
from pydantic import ValidationError

from genesis_fp16.domain.guard import GuardSettings, RunPair
from genesis_fp16.guard.detectors import (
    AgentObserver,
    ComparisonDetector,
    LossScaling,
    OverflowDetector,
    detect_metric_drift,
)
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import (
    CheckpointSaved,
    OverflowDiagnosed,
    PartStats,
    PrecisionChanged,
    Started,
)

SETTINGS = GuardSettings()


SCALE_FLOOR = 2.0**-16
HALVING = LossScaling(backoff_factor=0.5, floor=SCALE_FLOOR)


@pytest.fixture
def overflows() -> OverflowDetector:
    return OverflowDetector()


def add_steps(overflows: OverflowDetector, event, on_probation: bool = False) -> str | None:
    detection = overflows.add(event, SETTINGS, on_probation=on_probation)
    return detection.trigger if detection else None


@pytest.mark.parametrize(
    ("overflow", "expected"),
    [(0, None), (30, None), (31, "overflow_storm"), (100, "overflow_storm")],
)
def test_a_storm_is_more_than_the_limit_in_one_window(overflows, stats, overflow, expected) -> None:
    assert add_steps(overflows, stats(overflow=overflow)) == expected


def test_a_window_is_not_checked_before_it_is_full(overflows, stats) -> None:
    for _ in range(9):
        assert add_steps(overflows, stats(steps=11, overflow=5)) is None
    detection = overflows.add(stats(steps=1, overflow=0), SETTINGS, on_probation=False)
    assert detection is not None
    assert detection.summary == "45 of 100 steps overflowed (45%; the limit is 30%)"
    assert detection.numbers["ratios"] == [0.45]


def test_many_overflows_must_last(overflows, stats) -> None:
    triggers = [add_steps(overflows, stats(overflow=15)) for _ in range(5)]
    assert triggers == [None] * 4 + ["overflow_sustained"]


def test_one_good_window_ends_the_row(overflows, stats) -> None:
    ratios = [15, 15, 15, 15, 9, 15, 15, 15, 15]
    assert [add_steps(overflows, stats(overflow=ratio)) for ratio in ratios] == [None] * 9


def test_on_probation_one_window_is_enough(overflows, stats) -> None:
    assert add_steps(overflows, stats(overflow=9), on_probation=True) is None
    assert add_steps(overflows, stats(overflow=10), on_probation=True) == "overflow_sustained"


def test_overflow_at_the_floor_needs_no_window(overflows, stats) -> None:
    overflows.begin(65536.0, HALVING)
    assert add_steps(overflows, stats(steps=1, overflow=0, loss_scale=SCALE_FLOOR)) is None
    assert add_steps(overflows, stats(steps=1, overflow=1, loss_scale=SCALE_FLOOR)) == "scale_floor"


@pytest.mark.parametrize("scale", [65536.0, 2.0**34])
def test_the_search_for_a_scale_is_not_a_storm(overflows, stats, scale) -> None:
    """All overflow at once, down to a scale that fits: slow steps, one statistic each."""
    overflows.begin(scale, HALVING)
    for backoffs in range(1, 31):
        event = stats(steps=1, overflow=1, loss_scale=scale * 0.5**backoffs)
        assert add_steps(overflows, event, on_probation=True) is None
    assert [add_steps(overflows, stats(steps=1), on_probation=True) for _ in range(300)] == [
        None
    ] * 300


def test_the_search_may_share_an_event_with_steps_that_fit(overflows, stats) -> None:
    overflows.begin(65536.0, HALVING)
    assert add_steps(overflows, stats(steps=132, overflow=32)) is None, "100 of 100 fitted"
    assert add_steps(overflows, stats(overflow=31)) == "overflow_storm", "the search is over"


def test_the_first_step_that_fits_ends_the_search(overflows, stats) -> None:
    overflows.begin(65536.0, HALVING)
    assert add_steps(overflows, stats(steps=105, overflow=5)) is None
    assert add_steps(overflows, stats(steps=100, overflow=40)) == "overflow_storm"


def test_the_search_ends_where_the_floor_would_be(overflows, stats) -> None:
    overflows.begin(65536.0, HALVING)
    detection = overflows.add(stats(steps=132, overflow=82), SETTINGS, on_probation=False)
    assert detection is not None
    assert detection.summary.startswith("50 of 100 steps overflowed")


def test_a_slow_backoff_searches_longer(overflows, stats) -> None:
    overflows.begin(65536.0, LossScaling(backoff_factor=0.9, floor=SCALE_FLOOR))
    detection = overflows.add(stats(steps=311, overflow=311), SETTINGS, on_probation=False)
    assert detection is not None
    assert detection.summary.startswith("100 of 100 steps overflowed")


def test_a_scale_at_the_floor_has_nowhere_to_search(overflows, stats) -> None:
    overflows.begin(SCALE_FLOOR, HALVING)
    assert add_steps(overflows, stats(overflow=50)) == "overflow_storm"
    overflows.begin(SCALE_FLOOR / 4, HALVING)
    assert add_steps(overflows, stats(overflow=30)) is None, "nor does it owe anything"


def test_the_floor_of_the_settings_is_used(overflows, stats) -> None:
    overflows.begin(8.0, LossScaling(floor=4.0))
    assert add_steps(overflows, stats(steps=1, overflow=1, loss_scale=8.0)) is None
    unscaled = stats(steps=1, overflow=1, loss_scale=1.0, precision="bf16")
    assert add_steps(overflows, unscaled) is None
    assert add_steps(overflows, stats(steps=1, overflow=1, loss_scale=4.0)) == "scale_floor"


@pytest.fixture
def compare():
    detector = ComparisonDetector()

    def compare(event, accelerator: bool = True) -> str | None:
        detection = detector.add(event, SETTINGS, accelerator=accelerator)
        return detection.trigger if detection else None

    return compare


@pytest.mark.parametrize("loss", [0.53, 0.47, 5.0, math.inf, math.nan])
def test_a_loss_that_differs_by_more_than_the_limit(compare, compared, loss) -> None:
    event = compared(loss=loss)
    assert [compare(event) for _ in range(3)] == [None, None, "loss_drift"]


def test_what_is_within_the_limit_is_not_a_drift(compare, compared) -> None:
    assert [compare(compared(loss=loss)) for loss in (0.52, 0.48, 0.5) * 5] == [None] * 15


def test_one_good_comparison_ends_the_row(compare, compared) -> None:
    bad, good = compared(loss=0.6), compared()
    assert [compare(event) for event in (bad, bad, good, bad, bad, good)] == [None] * 6


def test_a_comparison_that_proves_nothing_is_ignored(compare, compared) -> None:
    bad = compared(loss=0.6)
    for dumb in (compared(fp32_loss=math.nan), compared(loss=9.0, comparable=False)):
        assert compare(dumb) is None
    assert [compare(bad), compare(bad)] == [None, None]
    assert compare(compared(fp32_loss=math.inf, loss=math.nan)) is None
    assert compare(bad) == "loss_drift"


def test_a_tiny_loss_does_not_drift(compare, compared) -> None:
    """A loss far below its first value consists of rounding.

    The numbers are of healthy agents, as a daemon had resumed them.
    """
    for half, fp32 in ((1.27684e-4, 8.2064e-5), (6.38711e-5, 3.48637e-5)):
        learnt = compared(loss=half, fp32_loss=fp32, largest_fp32_loss=0.3445)
        assert [compare(learnt) for _ in range(5)] == [None] * 5
    wrong = compared(loss=3e-4, fp32_loss=1e-4, largest_fp32_loss=0.3445)
    assert [compare(wrong) for _ in range(3)] == [None, None, "loss_drift"]


def test_the_summary_of_a_drift_names_its_divisor(compared) -> None:
    summaries = []
    for event in (
        compared(loss=3e-4, fp32_loss=1e-4, largest_fp32_loss=0.25),
        compared(loss=0.6, fp32_loss=0.5, largest_fp32_loss=0.7),
    ):
        detector = ComparisonDetector()
        detection = [detector.add(event, SETTINGS, accelerator=False) for _ in range(3)][-1]
        summaries.append(detection.summary if detection else "")
    assert "8.0% of 0.0025 (1% of the run's largest" in summaries[0]
    assert "20.0% of 0.5 (the FP32 loss)" in summaries[1]


def test_a_loss_of_zero_is_not_a_drift(compare, compared) -> None:
    assert [compare(compared(loss=0.0, fp32_loss=0.0)) for _ in range(4)] == [None] * 4


def test_gradients_that_become_zero(compare, compared) -> None:
    event = compared(underflow=0.9, gradient_error=0.8)
    assert [compare(event) for _ in range(3)] == [None, None, "underflow"]


def test_parameters_that_get_no_gradient_although_it_is_small(compare, compared) -> None:
    event = compared(underflow=0.1, blocked=0.1, gradient_error=0.001)
    assert [compare(event) for _ in range(3)] == [None, None, "underflow"]


@pytest.mark.parametrize(
    "harmless",
    [
        {"underflow": 0.9, "gradient_error": 0.01},  # the lost ones were next to nothing
        {"underflow": 0.1, "gradient_error": 0.8},  # whatever is wrong, it is not this
        {"underflow": 0.9, "gradient_error": 0.01, "blocked": 0.04},
        {"underflow": None, "gradient_error": None},
        {"underflow": 0.9, "gradient_error": math.inf},  # an overflow
        {"underflow": 0.9, "gradient_error": 0.8, "comparable": False},
    ],
)
def test_underflow_without_harm(compare, compared, harmless) -> None:
    assert [compare(compared(**harmless)) for _ in range(5)] == [None] * 5


def test_slower_than_fp32_on_an_accelerator(compare, compared) -> None:
    slow = compared(seconds=0.011, fp32_seconds=0.010)
    assert [compare(slow) for _ in range(3)] == [None, None, "slower_than_fp32"]


def test_a_cpu_may_be_slower(compare, compared) -> None:
    slow = compared(seconds=1.0, fp32_seconds=0.010)
    assert [compare(slow, accelerator=False) for _ in range(5)] == [None] * 5


def test_one_slow_comparison_among_fast_ones_is_noise(compare, compared) -> None:
    slow, fast = compared(seconds=9.0), compared()
    assert [compare(event) for event in (fast, slow, fast, fast, slow, fast)] == [None] * 6


def test_equal_speed_is_not_slower(compare, compared) -> None:
    equal = compared(seconds=0.0101, fp32_seconds=0.010)
    assert [compare(equal) for _ in range(6)] == [None] * 6


def pair(half: float, fp32: float, higher_is_better: bool = False) -> RunPair:
    return RunPair(
        half_run="h",
        fp32_run="f",
        metric="mse",
        half=half,
        fp32=fp32,
        higher_is_better=higher_is_better,
    )


def test_the_same_drift_in_every_pair_is_detected_with_the_fewest() -> None:
    worse = pair(1.03, 1.0)
    assert detect_metric_drift([worse, worse], SETTINGS) is None
    drift = detect_metric_drift([worse] * 3, SETTINGS)
    assert drift is not None
    assert drift.trigger == "metric_drift"
    assert "the held-out mse is 3.0% worse" in drift.summary
    assert drift.numbers["pairs"][0]["worse_by"] == pytest.approx(0.03)


@pytest.mark.parametrize(
    "runs",
    [
        pair(1.009, 1.0),
        pair(0.9, 1.0),
        pair(1.1, 1.0, higher_is_better=True),
        pair(-0.9, -1.0, higher_is_better=True),
        pair(0.0, 0.0),
        pair(math.nan, math.nan),
    ],
)
def test_no_drift(runs: RunPair) -> None:
    assert detect_metric_drift([runs] * 5, SETTINGS) is None


@pytest.mark.parametrize(
    "runs",
    [
        pair(0.97, 1.0, higher_is_better=True),
        pair(-1.03, -1.0, higher_is_better=True),
        pair(math.nan, 1.0),
        pair(math.inf, 1.0),
        pair(0.1, 0.0),
    ],
)
def test_drift(runs: RunPair) -> None:
    assert detect_metric_drift([runs] * 3, SETTINGS) is not None


@pytest.mark.process
@pytest.mark.parametrize("noise", [0.01, 0.1, 0.3])
def test_runs_that_differ_by_chance_are_not_detected(noise: float) -> None:
    """Healthy agents, checked after every pair: at most one in 40 is detected."""
    accused = 0
    for agent in range(40):
        draw = random.Random(agent)
        pairs = [pair(draw.gauss(1.0, noise), draw.gauss(1.0, noise)) for _ in range(30)]
        accused += any(detect_metric_drift(pairs[:seen], SETTINGS) for seen in range(3, 31, 3))
    assert accused <= 1


@pytest.mark.parametrize(("factor", "noise", "wanted"), [(1.1, 0.02, 10), (10.0, 0.3, 6)])
def test_a_drift_within_noise_is_found_in_time(factor: float, noise: float, wanted: int) -> None:
    draw = random.Random(1)
    pairs = [pair(factor * draw.gauss(1.0, noise), draw.gauss(1.0, noise)) for _ in range(wanted)]
    assert detect_metric_drift(pairs, SETTINGS) is not None


def test_the_newest_pairs_count() -> None:
    long_ago, lately = [pair(1.0, 1.0)] * 200, [pair(1.03, 1.0)] * 64
    assert detect_metric_drift(long_ago + lately, SETTINGS) is not None
    assert detect_metric_drift(lately + long_ago, SETTINGS) is None
    assert detect_metric_drift(long_ago + [pair(1.02, 1.0)] * 3, SETTINGS) is not None


def test_three_pairs_that_differ_prove_less_than_four() -> None:
    three = [pair(half, 1.0) for half in (1.10, 1.11, 1.12)]
    assert detect_metric_drift(three, SETTINGS) is None
    assert detect_metric_drift([*three, pair(1.11, 1.0)], SETTINGS) is not None


@pytest.mark.parametrize(
    ("half", "worse_by", "worse_share"),
    [(0.0, 0.0, 0.0), (0.1, math.inf, 1.0), (-0.1, -math.inf, -1.0)],
)
def test_beside_a_value_of_zero(half: float, worse_by: float, worse_share: float) -> None:
    assert (pair(half, 0.0).worse_by, pair(half, 0.0).worse_share) == (worse_by, worse_share)


def test_the_share_stays_small_however_bad_it_is() -> None:
    assert pair(100.0, 1.0).worse_by == 99.0
    assert pair(100.0, 1.0).worse_share == pytest.approx(0.99)


def test_one_pair_has_no_spread() -> None:
    with pytest.raises(ValidationError, match="guard_pairs"):
        GuardSettings(guard_pairs=1)


FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")


@pytest.fixture
def observer() -> AgentObserver:
    return AgentObserver()


def observe(
    observer: AgentObserver, event: Event, run_id: str = "r", on_probation: bool = False
) -> str | None:
    detection = observer.observe(
        run_id, event, SETTINGS, on_probation=on_probation, scaling=LossScaling()
    )
    return detection.trigger if detection else None


def test_steps_in_fp32_are_ignored(observer, stats) -> None:
    event = stats(overflow=100, precision="fp32", consecutive_nonfinite_losses=99)
    assert observe(observer, event) is None
    assert observer.half_steps == 0


def test_bf16_is_watched_too(observer, stats) -> None:
    assert (
        observe(observer, stats(overflow=50, precision="bf16", loss_scale=1.0)) == "overflow_storm"
    )


@pytest.mark.parametrize(("losses", "expected"), [(24, None), (25, "nonfinite_loss")])
def test_losses_in_a_row_that_are_not_finite(observer, stats, losses, expected) -> None:
    assert observe(observer, stats(consecutive_nonfinite_losses=losses)) == expected


def test_half_precision_begins_with_a_search(observer, stats) -> None:
    assert observe(observer, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0)) is None
    assert observe(observer, stats(steps=132, overflow=32)) is None
    assert observe(observer, stats(overflow=32)) == "overflow_storm"
    in_bf16 = PrecisionState(requested="bf16", effective="bf16", reason="default")
    assert observe(observer, PrecisionChanged(step=0, state=in_bf16, loss_scale=65536.0)) is None
    assert observe(observer, stats(overflow=32, precision="bf16")) == "overflow_storm", (
        "it has no scale"
    )


def test_on_probation_a_single_window_is_enough(observer, stats) -> None:
    assert observe(observer, stats(overflow=15)) is None
    assert observe(observer, stats(overflow=15), on_probation=True) == "overflow_sustained"


def test_windows_continue_from_run_to_run(observer, stats) -> None:
    """Runs shorter than a window are checked too."""
    triggers = [observe(observer, stats(steps=25, overflow=10), run_id=f"r{n}") for n in range(4)]
    assert triggers == [None, None, None, "overflow_storm"]


def test_times_on_a_cpu_do_not_count(observer, compared) -> None:
    slow = compared(seconds=9.0)
    observe(observer, Started(pid=1, device="cpu", torch_version="2"))
    assert [observe(observer, slow) for _ in range(4)] == [None] * 4
    observe(observer, Started(pid=1, device="cuda:0", torch_version="2"))
    assert [observe(observer, slow) for _ in range(3)] == [None, None, "slower_than_fp32"]


def test_evidence_holds_what_was_seen(observer, stats, compared) -> None:
    observe(observer, CheckpointSaved(step=50, path="p", size_bytes=9, seconds=0.1))
    observe(observer, stats(steps=60, overflow=30, loss_scale=2.0))
    observe(observer, stats(steps=20))
    observe(observer, compared(nonfinite_module="long ago"))
    observe(observer, compared(nonfinite_module="mul in encoder.0", worst_module="head"))
    overflow = {"precision": "fp16", "loss_scale": 2.0, "overflows": 9, "seconds": 0.1}
    diagnosed = OverflowDiagnosed(step=70, cause="forward", module="gate (Exp)", **overflow)
    observe(observer, diagnosed)
    seen = observer.evidence()
    assert seen["half_steps"] == 80
    assert seen["statistics"][0]["loss_scale"] == 2.0
    assert seen["offending_modules"] == ["gate (Exp)", "head", "mul in encoder.0"]
    assert seen["overflow_diagnoses"][0]["cause"] == "forward"
    assert seen["checkpoint"]["path"] == "p"
    observe(observer, Started(pid=1, device="cpu", torch_version="2"), run_id="another")
    assert observer.step == 0
    assert observer.evidence()["checkpoint"] is None, "of another run"


def test_a_reset_forgets_what_led_to_a_decision(observer, stats, compared) -> None:
    observe(observer, stats(steps=90, overflow=90))
    observe(observer, compared(loss=9.0))
    observer.reset()
    assert observer.evidence()["statistics"] == []
    assert observe(observer, stats(steps=100, overflow=20)) is None
    assert [observe(observer, compared(loss=9.0)) for _ in range(2)] == [None, None]


def in_parts(stats, *parts: PartStats) -> Event:
    """Statistics whose sums are those of *parts*."""
    steps, overflow = (sum(getattr(p, name) for p in parts) for name in ("attempted", "overflow"))
    lowest = min(part.loss_scale for part in parts)
    return stats(steps=steps, overflow=overflow, loss_scale=lowest, parts=parts)


def healthy(name: str, steps: int = 100) -> PartStats:
    return PartStats(name=name, attempted=steps, loss_scale=1024.0)


def test_a_storm_of_one_part_is_seen_among_the_steps_of_all(observer, stats) -> None:
    storm = PartStats(name="critic", attempted=100, overflow=50, loss_scale=64.0)
    others = [healthy(f"actor-{n}") for n in range(4)]
    event = in_parts(stats, *others, storm)
    assert event.overflow / event.attempted == 0.1, "no storm of the job as a whole"
    found = observer.observe("r", event, SETTINGS, on_probation=False, scaling=LossScaling())
    assert found.trigger == "overflow_storm"
    assert found.summary == "part critic: 50 of 100 steps overflowed (50%; the limit is 30%)"
    assert found.numbers["part"] == "critic"


def test_the_part_whose_losses_are_not_finite_is_named(observer, stats) -> None:
    broken = PartStats(name="critic", attempted=25, consecutive_nonfinite_losses=25)
    once = PartStats(name="actor", attempted=25, consecutive_nonfinite_losses=1)
    event = in_parts(stats, broken, once)
    event = event.model_copy(update={"consecutive_nonfinite_losses": 25})
    found = observer.observe("r", event, SETTINGS, on_probation=False, scaling=LossScaling())
    assert found.summary.startswith("part critic: 25 losses in a row were not finite in fp16")
    assert found.numbers["part"] == "critic"


def test_each_part_searches_for_its_scale(observer, stats) -> None:
    """The actor's scale fits at once; the critic's steps overflow until theirs does."""
    observe(observer, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0))
    searching = PartStats(name="critic", attempted=1, overflow=1, loss_scale=64.0)
    for _ in range(31):
        assert observe(observer, in_parts(stats, searching, healthy("actor", 1))) is None
    for _ in range(100):
        assert observe(observer, in_parts(stats, healthy("critic", 1), healthy("actor", 1))) is None


def test_the_floor_of_one_part_is_enough(observer, stats) -> None:
    observe(observer, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0))
    at_floor = PartStats(name="critic", attempted=9, overflow=1, loss_scale=SCALE_FLOOR)
    assert observe(observer, in_parts(stats, healthy("actor", 9), at_floor)) == "scale_floor"
    unscaled = in_parts(stats, healthy("actor", 9), healthy("critic", 9))
    assert observe(observer, unscaled) is None


def test_a_part_that_takes_no_step_detects_nothing(observer, stats) -> None:
    for _ in range(300):
        assert observe(observer, in_parts(stats, healthy("critic", 1), healthy("actor", 0))) is None
