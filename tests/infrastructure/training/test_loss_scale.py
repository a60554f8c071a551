"""The loss scale and its adaptive growth interval, against the rule in plain Python."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loss_scale import AdaptiveLossScale, LossScale, make_loss_scale

CPU = torch.device("cpu")
ONE, ZERO = torch.ones(()), torch.zeros(())


def config(**changes: object) -> FP16TrainingConfig:
    return FP16TrainingConfig(**({"growth_interval": 16, "loss_scale": 256.0} | changes))


def steps_at_ceiling(scale: LossScale, ceiling: float, steps: int) -> list[int]:
    """Numbers of the steps that overflow where every scale above *ceiling* does."""
    overflows = []
    for step in range(steps):
        bad = (scale.scale > ceiling).float()
        overflows += [step] if bad else []
        scale.update(bad, ZERO)
    return overflows


def test_only_the_option_makes_it_adaptive() -> None:
    assert type(make_loss_scale(config(), CPU)) is LossScale
    adaptive = make_loss_scale(config(adaptive_growth_interval=True), CPU)
    assert type(adaptive) is AdaptiveLossScale


@pytest.mark.process
def test_a_scale_at_its_ceiling_hardly_overflows() -> None:
    """The fixed interval pays one step in seventeen, for ever."""
    fixed = steps_at_ceiling(LossScale(config(), CPU), 256.0, 4000)
    adaptive = steps_at_ceiling(AdaptiveLossScale(config(), CPU), 256.0, 4000)
    assert len(fixed) > 230
    assert len(adaptive) <= 12
    gaps = [later - earlier for earlier, later in pairwise(adaptive)]
    assert gaps == sorted(gaps)


def test_a_scale_far_too_low_climbs_faster() -> None:
    low = config(loss_scale=1.0)

    def steps_up(scale: LossScale) -> int:
        for step in range(2000):
            if scale.scale >= 2.0**24:
                return step
            scale.update(ZERO, ZERO)
        raise AssertionError("never got there")

    assert steps_up(LossScale(low, CPU)) == 24 * 16
    assert steps_up(AdaptiveLossScale(low, CPU)) <= 16 + 16 + 8 + 4 + 2 + 20


def test_overflows_while_coming_down_leave_the_interval_alone() -> None:
    scale = AdaptiveLossScale(config(loss_scale=2.0**40), CPU)
    assert len(steps_at_ceiling(scale, 2.0**10, 31)) == 30
    assert scale.interval.item() == 16.0


@pytest.mark.process
def test_a_ceiling_that_rises_is_followed() -> None:
    """After failed trials the interval is long; it must shrink when growth succeeds again."""
    scale = AdaptiveLossScale(config(), CPU)
    steps_at_ceiling(scale, 256.0, 1000)
    waited = scale.interval.item()
    steps_at_ceiling(scale, 2.0**30, 3000)
    assert scale.scale.item() >= 2.0**29
    assert waited > 100.0


class Reference:
    """The rule in plain Python."""

    def __init__(self, cfg: FP16TrainingConfig) -> None:
        self.cfg, self.scale, self.tracker = cfg, cfg.loss_scale, 0
        self.interval, self.trying = float(cfg.growth_interval), False

    def update(self, outcome: str) -> None:
        cfg = self.cfg
        if outcome == "bad loss":
            return
        if outcome == "overflow":
            self.scale = max(self.scale * cfg.backoff_factor, cfg.min_loss_scale)
            self.interval *= 2.0 if self.trying else 1.0
            self.tracker, self.trying = 0, False
        else:
            self.tracker += 1
            if self.tracker >= self.interval:
                self.scale *= cfg.growth_factor
                self.interval /= 2.0 if self.trying else 1.0
                self.tracker, self.trying = 0, True
        limits = max(1.0, cfg.growth_interval / 32), cfg.growth_interval * 32.0
        self.interval = min(max(self.interval, limits[0]), limits[1])


OUTCOMES = {"good": (ZERO, ZERO), "overflow": (ONE, ZERO), "bad loss": (ONE, ONE)}


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OUTCOMES)), st.integers(1, 12)), min_size=1, max_size=25
    ),
    st.integers(1, 5),
)
def test_the_adaptive_scale_follows_the_rule_in_plain_python(
    story: list[tuple[str, int]], interval: int
) -> None:
    cfg = config(growth_interval=interval)
    scale, reference = AdaptiveLossScale(cfg, CPU), Reference(cfg)
    for outcome, times in story:
        for _ in range(times):
            scale.update(*OUTCOMES[outcome])
            reference.update(outcome)
            assert scale.scale.item() == min(reference.scale, 2.0**127)
            assert scale.interval.item() == reference.interval
            assert scale.tracker.item() == reference.tracker


@pytest.mark.process
@pytest.mark.parametrize("steps", [3, 16, 17, 30, 49, 50, 100])
def test_a_resumed_scale_continues_from_its_state(steps: int) -> None:
    """Also right after a growth, while it is not known what becomes of it."""
    whole = AdaptiveLossScale(config(), CPU)
    steps_at_ceiling(whole, 256.0, steps)
    resumed = AdaptiveLossScale(config(), CPU)
    resumed.load_state_dict(whole.state_dict())
    assert steps_at_ceiling(whole, 256.0, 900) == steps_at_ceiling(resumed, 256.0, 900)
    assert whole.state_dict() == resumed.state_dict()


def test_states_of_either_kind_load_into_the_other() -> None:
    fixed, adaptive = LossScale(config(), CPU), AdaptiveLossScale(config(), CPU)
    steps_at_ceiling(fixed, 256.0, 20)
    adaptive.load_state_dict(fixed.state_dict())
    assert (adaptive.scale, adaptive.tracker) == (fixed.scale, fixed.tracker)
    assert adaptive.interval.item() == 16.0
    fixed.load_state_dict(adaptive.state_dict())


def test_real_fp16_overflows_less_often_with_an_adaptive_interval(
    make_trainer, loss_fn, batch, spiked
) -> None:
    def overflows(adaptive: bool) -> int:
        trainer = make_trainer(
            "fp16", growth_interval=2, loss_scale=2.0**16, adaptive_growth_interval=adaptive
        )
        for step in range(200):
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))
        return int(trainer.get_stats()["overflow_steps"])

    assert overflows(adaptive=True) < overflows(adaptive=False) / 3


@pytest.mark.parametrize("adaptive", [False, True])
def test_steps_without_overflow_advance_the_tracker_only(
    make_trainer, loss_fn, batch, adaptive: bool
) -> None:
    trainer = make_trainer("fp16", loss_scale=64.0, adaptive_growth_interval=adaptive)
    for _ in range(3):
        trainer.step(trainer.training_step(batch, loss_fn))
    assert trainer.state_dict()["loss_scale"]["growth_tracker"] == 3
    assert trainer.get_stats()["current_scale"] == 64.0
