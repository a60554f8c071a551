"""One agent's events, as the guard sees them."""

import pytest

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.guard.overflow_windows import Scaling
from genesis_fp16.guard.watch import Watch
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import CheckpointSaved, PrecisionChanged, Started

SETTINGS = GuardSettings()
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")


@pytest.fixture
def watch() -> Watch:
    return Watch()


def take(watch: Watch, event: Event, run_id: str = "r", strict: bool = False) -> str | None:
    found = watch.take(run_id, event, SETTINGS, strict=strict, scaling=Scaling())
    return found.trigger if found else None


def test_steps_in_fp32_are_nobodys_business(watch, stats) -> None:
    event = stats(overflow=100, precision="fp32", consecutive_nonfinite_losses=99)
    assert take(watch, event) is None
    assert watch.half_steps == 0


def test_bf16_is_watched_too(watch, stats) -> None:
    assert take(watch, stats(overflow=50, precision="bf16", loss_scale=1.0)) == "overflow_storm"


@pytest.mark.parametrize(("losses", "expected"), [(24, None), (25, "nonfinite_loss")])
def test_losses_in_a_row_that_are_not_finite(watch, stats, losses, expected) -> None:
    assert take(watch, stats(consecutive_nonfinite_losses=losses)) == expected


def test_half_precision_begins_with_a_search(watch, stats) -> None:
    assert take(watch, PrecisionChanged(step=0, state=FP16, loss_scale=65536.0)) is None
    assert take(watch, stats(steps=132, overflow=32)) is None
    assert take(watch, stats(overflow=32)) == "overflow_storm"
    in_bf16 = PrecisionState(requested="bf16", effective="bf16", reason="default")
    assert take(watch, PrecisionChanged(step=0, state=in_bf16, loss_scale=65536.0)) is None
    assert take(watch, stats(overflow=32, precision="bf16")) == "overflow_storm", "it has no scale"


def test_on_probation_less_is_enough(watch, stats) -> None:
    assert take(watch, stats(overflow=15)) is None
    assert take(watch, stats(overflow=15), strict=True) == "overflow_sustained"


def test_windows_go_on_from_run_to_run(watch, stats) -> None:
    """Runs shorter than a window are watched all the same."""
    found = [take(watch, stats(steps=25, overflow=10), run_id=f"r{n}") for n in range(4)]
    assert found == [None, None, None, "overflow_storm"]


def test_times_on_a_cpu_do_not_count(watch, compared) -> None:
    slow = compared(seconds=9.0)
    take(watch, Started(pid=1, device="cpu", torch_version="2"))
    assert [take(watch, slow) for _ in range(4)] == [None] * 4
    take(watch, Started(pid=1, device="cuda:0", torch_version="2"))
    assert [take(watch, slow) for _ in range(3)] == [None, None, "slower_than_fp32"]


def test_evidence_holds_what_was_seen(watch, stats, compared) -> None:
    take(watch, CheckpointSaved(step=50, path="p", size_bytes=9, seconds=0.1))
    take(watch, stats(steps=60, overflow=30, loss_scale=2.0))
    take(watch, stats(steps=20))
    take(watch, compared(nonfinite_module="long ago"))
    take(watch, compared(nonfinite_module="mul in encoder.0", worst_module="head"))
    seen = watch.seen()
    assert seen["half_steps"] == 80
    assert seen["statistics"][0]["loss_scale"] == 2.0
    assert seen["offending_modules"] == ["head", "mul in encoder.0"]
    assert seen["checkpoint"]["path"] == "p"
    take(watch, Started(pid=1, device="cpu", torch_version="2"), run_id="another")
    assert watch.step == 0
    assert watch.seen()["checkpoint"] is None, "of another run"


def test_what_led_to_a_decision_counts_no_more(watch, stats, compared) -> None:
    take(watch, stats(steps=90, overflow=90))
    take(watch, compared(loss=9.0))
    watch.forget()
    assert watch.seen()["statistics"] == []
    assert take(watch, stats(steps=100, overflow=20)) is None
    assert [take(watch, compared(loss=9.0)) for _ in range(2)] == [None, None]
