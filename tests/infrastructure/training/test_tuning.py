"""Adaptive growth interval and clipping, against plain Python and against what is not adaptive."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.loss_scale import LossScale
from infrastructure.training.tuning import AdaptiveClip, AdaptiveLossScale, loss_scale_of

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


# -- growth interval -----------------------------------------------------------------------------


def test_only_the_option_makes_it_adaptive() -> None:
    assert type(loss_scale_of(config(), CPU)) is LossScale
    adaptive = loss_scale_of(config(adaptive_growth_interval=True), CPU)
    assert type(adaptive) is AdaptiveLossScale


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


def test_coming_down_is_no_reason_to_wait_longer() -> None:
    scale = AdaptiveLossScale(config(loss_scale=2.0**40), CPU)
    assert len(steps_at_ceiling(scale, 2.0**10, 31)) == 30
    assert scale.interval.item() == 16.0


def test_a_ceiling_that_rises_is_followed() -> None:
    """After tries in vain the interval is long; it must not stay so when growth pays again."""
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
def test_adaptive_scale_is_the_rule_in_words(story: list[tuple[str, int]], interval: int) -> None:
    cfg = config(growth_interval=interval)
    scale, reference = AdaptiveLossScale(cfg, CPU), Reference(cfg)
    for outcome, times in story:
        for _ in range(times):
            scale.update(*OUTCOMES[outcome])
            reference.update(outcome)
            assert scale.scale.item() == min(reference.scale, 2.0**127)
            assert scale.interval.item() == reference.interval
            assert scale.tracker.item() == reference.tracker


@pytest.mark.parametrize("steps", [3, 16, 17, 30, 49, 50, 100])
def test_a_resumed_scale_goes_on_where_it_was(steps: int) -> None:
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


# -- clipping ------------------------------------------------------------------------------------


class ZClip:
    """Kumar et al. 2025 in plain Python, as their own code has it."""

    def __init__(self) -> None:
        self.first: list[float] = []
        self.mean = self.variance = 0.0

    def allowed(self, norm: float) -> float:
        if len(self.first) < 25:
            self.first.append(norm)
            self.mean, self.variance = (
                statistics.fmean(self.first),
                statistics.pvariance(self.first),
            )
            return norm
        deviation = math.sqrt(self.variance)
        z = (norm - self.mean) / (deviation + 1e-6)
        if z > 2.5:
            norm = self.mean + 2.5 * deviation / (z / 2.5)
        self.mean = 0.97 * self.mean + 0.03 * norm
        self.variance = 0.97 * self.variance + 0.03 * (norm - self.mean) ** 2
        return norm


def norms(count: int, spikes: dict[int, float]) -> list[float]:
    generator = torch.Generator().manual_seed(2)
    values = (2.0 + 0.3 * torch.randn(count, generator=generator)).tolist()
    return [spikes.get(step, value) for step, value in enumerate(values)]


def test_adaptive_clip_is_zclip() -> None:
    clip, reference = AdaptiveClip(CPU), ZClip()
    divisors = []
    for norm in norms(200, {10: 9.0, 40: 50.0, 41: 50.0, 90: 4.0, 150: 1e4}):
        divisors.append(clip(torch.tensor(norm), ZERO).item())
        expected = norm / reference.allowed(norm)
        assert divisors[-1] == pytest.approx(expected, rel=1e-3)
    assert max(divisors[:25]) == 1.0
    assert min(divisors[40], divisors[150]) > 5.0
    assert sum(divisor > 1.0 for divisor in divisors) < 12


@pytest.mark.parametrize("bad", [math.inf, math.nan])
@pytest.mark.parametrize("at", [3, 60])
def test_a_skipped_step_leaves_the_statistics_alone(bad: float, at: int) -> None:
    """In a naive running mean one infinite norm switches clipping off for good."""
    clip, undisturbed = AdaptiveClip(CPU), AdaptiveClip(CPU)
    for step, norm in enumerate(norms(100, {})):
        if step == at:
            clip(torch.tensor(bad), ONE)
        clip(torch.tensor(norm), ZERO)
        undisturbed(torch.tensor(norm), ZERO)
    assert clip.state_dict() == undisturbed.state_dict()
    assert clip(torch.tensor(100.0), ZERO).item() > 10.0


def test_an_outlier_does_not_widen_what_is_usual() -> None:
    """The clipped norm enters the mean: the second of two spikes is clipped as well."""
    clip = AdaptiveClip(CPU)
    for norm in norms(100, {}):
        clip(torch.tensor(norm), ZERO)
    first, second = (clip(torch.tensor(1000.0), ZERO).item() for _ in range(2))
    assert second == pytest.approx(first, rel=0.2)


# -- in the trainer ------------------------------------------------------------------------------


def spiked(batch: dict[str, torch.Tensor], step: int, at: int = 50) -> dict[str, torch.Tensor]:
    noise = torch.randn(batch["y"].shape, generator=torch.Generator().manual_seed(step))
    return {"x": batch["x"], "y": (batch["y"] + 0.3 * noise) * (1000.0 if step == at else 1.0)}


@pytest.mark.parametrize("optimizer", ["sgd", "sgd-dampening"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_spike_moves_the_weights_no_further_than_usual(
    make_trainer, loss_fn, batch, precision: str, optimizer: str
) -> None:
    """Under fused and under documented optimizers; the fixed clipping is off."""

    def furthest(adaptive: bool) -> float:
        trainer = make_trainer(
            precision, optimizer, max_grad_norm=None, adaptive_clip=adaptive, loss_scale=8.0
        )
        for group in trainer.optimizer.param_groups:
            group["momentum"] = group["dampening"] = 0.0
        moved = []
        for step in range(51):
            before = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))
            after = nn.utils.parameters_to_vector(trainer.model.parameters()).detach()
            moved.append((after - before).norm().item())
        return moved[-1] / max(moved[25:-1])

    assert furthest(adaptive=True) < 2.0
    assert furthest(adaptive=False) > 100.0


def test_fixed_and_adaptive_clipping_both_bind(make_trainer, loss_fn, batch) -> None:
    trainer = make_trainer("fp32", "sgd", max_grad_norm=1e-3, adaptive_clip=True)
    fixed = make_trainer("fp32", "sgd", max_grad_norm=1e-3)
    for step in range(20):
        for each in (trainer, fixed):
            each.step(each.training_step(spiked(batch, step), loss_fn))
    for one, other in zip(trainer.model.parameters(), fixed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_tuning_reads_nothing_in_the_step(make_trainer, loss_fn, batch, read_counter) -> None:
    trainer = make_trainer("fp16", adaptive_clip=True, adaptive_growth_interval=True)
    trainer.step(trainer.training_step(batch, loss_fn))
    with read_counter() as counter:
        for step in range(40):
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))
    assert counter.reads == 0


def run(trainer: FP16Trainer, loss_fn: Callable, batch: dict, steps: range) -> None:
    for step in steps:
        trainer.step(trainer.training_step(spiked(batch, step), loss_fn))


def test_a_resumed_training_is_bit_exact(make_trainer, loss_fn, batch, tmp_path: Path) -> None:
    options = {"adaptive_clip": True, "adaptive_growth_interval": True, "growth_interval": 3}
    options |= {"loss_scale": 2.0**17}  # the ceiling is met, tries fail
    whole, first, second = (make_trainer("fp16", **options) for _ in range(3))
    run(whole, loss_fn, batch, range(90))
    run(first, loss_fn, batch, range(45))
    first.save_checkpoint(tmp_path / "c.pt")
    second.load_checkpoint(tmp_path / "c.pt")
    run(second, loss_fn, batch, range(45, 90))
    assert second.state_dict()["adaptive_clip"] == whole.state_dict()["adaptive_clip"]
    assert second.state_dict()["loss_scale"] == whole.state_dict()["loss_scale"]
    assert whole.get_stats()["overflow_steps"] > 2
    for one, other in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_without_tuning_loads_into_a_tuned_trainer(
    make_trainer, loss_fn, batch, tmp_path: Path
) -> None:
    plain, tuned = make_trainer("fp16"), make_trainer("fp16", adaptive_clip=True)
    run(plain, loss_fn, batch, range(3))
    plain.save_checkpoint(tmp_path / "plain.pt")
    tuned.load_checkpoint(tmp_path / "plain.pt")
    run(tuned, loss_fn, batch, range(3))
    tuned.save_checkpoint(tmp_path / "tuned.pt")
    plain.load_checkpoint(tmp_path / "tuned.pt")


def test_real_fp16_overflows_less_often_with_an_adaptive_interval(
    make_trainer, loss_fn, batch
) -> None:
    def overflows(adaptive: bool) -> int:
        trainer = make_trainer(
            "fp16", growth_interval=2, loss_scale=2.0**16, adaptive_growth_interval=adaptive
        )
        run(trainer, loss_fn, batch, range(200))
        return int(trainer.get_stats()["overflow_steps"])

    assert overflows(adaptive=True) < overflows(adaptive=False) / 3


@pytest.mark.parametrize("adaptive", [False, True])
def test_the_trainer_tells_the_scale_of_overflows_not_of_values(
    make_trainer, loss_fn, batch, adaptive: bool
) -> None:
    trainer = make_trainer("fp16", loss_scale=64.0, adaptive_growth_interval=adaptive)
    for _ in range(3):
        trainer.step(trainer.training_step(batch, loss_fn))
    assert trainer.state_dict()["loss_scale"]["growth_tracker"] == 3
    assert trainer.get_stats()["current_scale"] == 64.0
