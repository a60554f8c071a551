from __future__ import annotations

import copy
import hashlib
import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from infrastructure.agent_contract import Part, Target
from infrastructure.agent_contract.parts import NotComputedError
from infrastructure.events import PrecisionState
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.parts import PartsTrainer
from tests.infrastructure.training.parts.actor_critic import (
    PARTS,
    TARGETS,
    actor_loss,
    adamw,
    batches,
    network,
    temperature_loss,
    textbook,
)

SCALE = 2.0**12


def wish(precision: str) -> PrecisionState:
    return PrecisionState(requested="fp16", effective=precision, reason="override")


def trainer_of(
    precision: str = "fp32",
    model: Any = None,
    parts: Any = PARTS,
    targets: Any = TARGETS,
    kept: Any = (),
) -> PartsTrainer:
    config = FP16TrainingConfig(
        cpu_half=True, loss_scale=SCALE, growth_interval=5, max_grad_norm=None, keep_fp32=kept
    )
    return PartsTrainer(model or network(), parts, targets, config, wish=wish(precision))


def state_of(trainer: PartsTrainer) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def test_parts_are_the_textbooks_optimizers_in_fp32():
    ours, model = trainer_of("fp32"), network()
    for batch in batches(200):
        ours.train_batch(batch)
    textbook(model, batches(200), "fp32", SCALE)
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], expected, rtol=0, atol=1e-6)
    assert {name: part.trainer.training_steps for name, part in ours.parts.items()} == {
        "critic": 200,
        "actor": 100,
        "temperature": 100,
    }


def test_parts_skip_and_scale_as_the_textbooks_scalers_do():
    ours, model = trainer_of("fp16"), network()
    for batch in batches(200):
        ours.train_batch(batch)
    loops = textbook(model, batches(200), "fp16", SCALE)
    for part, loop in zip(ours.parts.values(), loops, strict=True):
        assert part.trainer.scale_in_force.item() == loop.scaler.get_scale(), part.part.name
    assert ours.parts["critic"].trainer.get_stats()["overflow_steps"] > 5
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(ours.model.state_dict()[name], expected, rtol=2e-2, atol=2e-2)


def test_a_target_begins_as_its_source_and_stays_where_a_step_is_skipped():
    model = network()
    nn.init.ones_(model.target[0][0].weight)
    ours = trainer_of("fp16", model)
    assert torch.equal(model.target[0][0].weight, model.critics[0][0].weight)
    *good, overflowing = batches(8)
    for batch in good:
        ours.train_batch(batch)
    before = state_of(ours)
    assert not torch.equal(before["target.0.0.weight"], before["critics.0.0.weight"])
    ours.train_batch(overflowing)
    assert ours.parts["critic"].trainer.get_stats()["overflow_steps"] == 1
    after = state_of(ours)
    for name in before:
        if name.startswith(("critics", "target")):
            assert torch.equal(before[name], after[name]), name
    ours.train_batch(batches(1)[0])
    assert not torch.equal(model.target[0][0].weight, after["target.0.0.weight"])


def test_a_hard_target_copies_every_so_many_steps():
    ours = trainer_of(targets=[Target(module="target", source="critics", tau=1.0, every=3)])
    model, seen = ours.model, []
    for batch in batches(6):
        ours.train_batch(batch)
        seen.append(torch.equal(model.target[0][0].weight, model.critics[0][0].weight))
    assert seen == [False, False, True, False, False, True]


@pytest.mark.parametrize("host_decides", [True, False])
def test_a_hard_target_counts_the_applied_steps_of_its_source(host_decides):
    """Of six steps the second and the third are skipped, so the third applied one is the fifth."""
    targets = [Target(module="target", source="critics", tau=1.0, every=3)]
    ours, resumed = (trainer_of("fp32", targets=targets) for _ in range(2))
    for trainer in (ours, resumed):
        trainer.parts["critic"].targets[0].host_decides = host_decides
    seen = []
    for index, batch in enumerate(batches(6)):
        if index in (1, 2):
            batch["reward"] = batch["reward"] * torch.nan
        before = ours.model.target[0][0].weight.clone()
        ours.train_batch(batch)
        after = ours.model.target[0][0].weight
        assert torch.equal(before, after) == (index != 4)
        seen.append(torch.equal(after, ours.model.critics[0][0].weight))
        if index == 3:
            resumed.load_state_dict(copy.deepcopy(ours.state_dict()))
        if index > 3:
            resumed.train_batch(batch)
            assert torch.equal(after, resumed.model.target[0][0].weight)
    assert seen == [False, False, False, False, True, False]


def test_targets_read_nothing_where_the_device_decides(read_counter):
    targets = [Target(module="target", source="critics", tau=1.0, every=3)]
    ours = trainer_of("fp32", targets=targets)
    (follower,) = ours.parts["critic"].targets
    follower.host_decides = False
    with read_counter() as counter:
        for skipped in (0.0, 1.0, 0.0):
            follower.update(torch.tensor(skipped))
    assert counter.reads == 0


def test_a_target_takes_over_the_buffers_of_its_source():
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
            self.copy = copy.deepcopy(self.net)

        def forward(self, x):
            return self.net(x)

    def loss(forward, batch, _computed):
        return (forward(batch["observation"]) - batch["reward"]).square().mean()

    model = Normed()
    part = Part(name="value", trains=["net"], optimizer=adamw, loss=loss)
    ours = trainer_of("fp16", model, [part], [Target(module="copy", source="net", tau=0.1)])
    for batch in batches(12):
        ours.train_batch(batch)
    assert ours.get_stats()["overflow_steps"] > 0
    assert torch.equal(model.copy[1].running_mean, model.net[1].running_mean)
    assert model.net[1].num_batches_tracked == ours.get_stats()["applied_steps"]


def test_counters_are_sums_and_readings_tell_the_parts():
    ours = trainer_of("fp16")
    for batch in batches(16):
        ours.train_batch(batch)
    stats = ours.get_stats()
    assert stats["training_steps"] == ours.training_steps == 32
    parts = [part.trainer.get_stats() for part in ours.parts.values()]
    for name in ("applied_steps", "overflow_steps", "fp16_steps"):
        assert stats[name] == sum(part[name] for part in parts)
    reading = ours.start_reading()()
    assert list(reading.parts) == ["critic", "actor", "temperature"]
    assert reading.overflow_steps == stats["overflow_steps"]
    assert reading.loss_scale == min(part["current_scale"] for part in parts)
    assert ours.part_totals()["actor"][0] == 8


def test_all_parts_change_precision_together():
    ours = trainer_of("fp16")
    given = batches(6)
    for batch, precision in zip(given, ["fp16", "fp32", "bf16"] * 2, strict=True):
        assert ours.set_precision(wish(precision)).effective == precision
        ours.train_batch(batch)
        assert {part.trainer.precision.value for part in ours.parts.values()} == {precision}


def test_a_part_is_raised_and_lowered_as_if_it_had_begun_so():
    live = trainer_of("fp16")
    given = batches(30)
    for batch in given[:9]:
        live.train_batch(batch)
    raised = replace(wish("fp16"), parts={"critic": "fp32"})
    assert live.set_precision(raised) == raised
    kept = trainer_of("fp16", kept=("part:critic",))
    kept.load_state_dict(copy.deepcopy(live.state_dict()))
    for batch in given[9:20]:
        live.train_batch(batch)
        kept.train_batch(batch)
    assert state_hash(live) == state_hash(kept)
    assert live.precision.value == kept.precision.value == "fp16"
    scales = {name: part.trainer.scale_in_force.item() for name, part in live.parts.items()}
    assert scales["critic"] == 1
    assert live.get_stats()["current_scale"] == min(scales["actor"], scales["temperature"]) > 1
    assert live.start_reading()().loss_scale == live.get_stats()["current_scale"]
    skipped = live.parts["critic"].trainer.get_stats()["overflow_steps"]
    for batch in batches(8):  # the last one overflows in FP16, and not in FP32
        live.train_batch(batch)
    assert live.parts["critic"].trainer.get_stats()["overflow_steps"] == skipped
    live.set_precision(wish("fp16"))
    assert live.parts["critic"].trainer.scale_in_force.item() > 1
    live.set_precision(wish("fp32"))
    assert {part.trainer.precision.value for part in live.parts.values()} == {"fp32"}


def state_hash(trainer: PartsTrainer) -> str:
    """All that a checkpoint holds."""
    file = io.BytesIO()
    torch.save(trainer.state_dict(), file)
    return hashlib.sha256(file.getvalue()).hexdigest()


def test_a_state_resumes_bit_for_bit_and_in_turn():
    undisturbed, resumed = trainer_of("fp16"), trainer_of("fp16")
    given = batches(21)
    for batch in given[:7]:  # an odd number: it is not the actor's turn
        undisturbed.train_batch(batch)
    resumed.load_state_dict(copy.deepcopy(undisturbed.state_dict()))
    for batch in given[7:]:
        undisturbed.train_batch(batch)
        resumed.train_batch(batch)
    one, other = state_of(undisturbed), state_of(resumed)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert undisturbed.get_stats() == resumed.get_stats()


def test_a_state_of_other_parts_is_refused_by_name():
    state = trainer_of().state_dict()
    with pytest.raises(ValueError, match=r"critic, actor, temperature.*critic, actor$"):
        trainer_of(parts=PARTS[:2]).load_state_dict(state)


def test_a_part_states_its_clip_and_scale_itself():
    parts = [replace(PARTS[0], max_grad_norm=0.5, loss_scale=64.0), *PARTS[1:]]
    config = FP16TrainingConfig(cpu_half=True, max_grad_norm=2.0)
    ours = PartsTrainer(network(), parts, TARGETS, config, wish=wish("fp16"))
    given = [part.trainer.config for part in ours.parts.values()]
    assert [(c.max_grad_norm, c.loss_scale) for c in given] == [(0.5, 64.0)] + 2 * [(2.0, 65536.0)]
    parts = [replace(PARTS[0], max_grad_norm=0.0), *PARTS[1:]]
    ours = PartsTrainer(network(), parts, TARGETS, config, wish=wish("fp16"))
    assert ours.parts["critic"].trainer.config.max_grad_norm is None


def test_a_parts_scale_is_raised_to_the_operators_floor():
    parts = [replace(PARTS[0], loss_scale=1.0), *PARTS[1:]]
    config = FP16TrainingConfig(cpu_half=True, min_loss_scale=1024.0)
    ours = PartsTrainer(network(), parts, TARGETS, config, wish=wish("fp16"))
    assert ours.parts["critic"].trainer.config.loss_scale == 1024.0


@pytest.mark.parametrize(
    "value", [{"loss_scale": -1.0}, {"loss_scale": "3"}, {"max_grad_norm": math.inf}]
)
def test_a_wrong_number_of_a_part_is_refused_with_its_name(value):
    [name] = value
    with pytest.raises(ValueError, match=f"{name} of part 'critic' must be"):
        part(**value)


def part(**changes: Any) -> Part:
    return replace(PARTS[0], **changes)


@pytest.mark.parametrize(
    ("parts", "targets", "told"),
    [
        ([PARTS[0], part(name="other")], (), "'critic' and 'other' both train critics.0.0.weight"),
        ([part(trains=["critic"])], (), "no module or parameter 'critic'.*'critics'"),
        ([part(trains=["critics.0.1"])], (), "part 'critic' has no parameter.*critics.0.1"),
        ([part(trains=["target"])], TARGETS, "'critic' trains target.0.0.weight.*'target'"),
        (PARTS, [Target(module="target", source="critc", tau=0.1)], "no module.*'critc'"),
        (PARTS, [Target(module="target", source="actor", tau=0.1)], "'target'.*'actor'.*different"),
        (PARTS[1:], TARGETS, "source 'critics' of target 'target'.*no part"),
        (PARTS, [Target(module="critics", source="critics", tau=0.1)], "critics"),
        (
            PARTS,
            [*TARGETS, Target(module="target.0", source="critics.0", tau=0.1)],
            r"targets 'target' and 'target\.0' both hold target\.0\.0\.weight",
        ),
    ],
)
def test_a_wrong_division_is_refused_by_name(parts, targets, told):
    with pytest.raises(ValueError, match=told):
        trainer_of(parts=parts, targets=targets)


def test_what_no_earlier_part_computes_is_refused_by_name():
    swapped = [PARTS[0], PARTS[2], PARTS[1]]
    with pytest.raises(NotComputedError, match="'temperature' reads 'entropy'"):
        trainer_of(parts=swapped).train_batch(batches(1)[0])


def test_what_is_computed_less_often_than_it_is_read_is_refused_in_the_first_step():
    hasty = [*PARTS[:2], replace(PARTS[2], every=1)]
    with pytest.raises(NotComputedError, match=r"'actor'.*every 2\."):
        trainer_of(parts=hasty).train_batch(batches(1)[0])


def test_what_is_handed_on_has_no_graph():
    seen = []

    def reads(forward, batch, computed):
        seen.append(computed["entropy"])
        return temperature_loss(forward, batch, computed)

    parts = [*PARTS[:2], replace(PARTS[2], loss=reads)]
    trainer_of(parts=parts).train_batch(batches(1)[0])
    assert not seen[0].requires_grad


def test_schedules_advance_with_the_steps_of_their_part():
    def halving(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)

    parts = [PARTS[0], replace(PARTS[1], scheduler=halving), PARTS[2]]
    ours = trainer_of(parts=parts)
    for batch in batches(5):
        ours.train_batch(batch)
    rates = {n: p.trainer.optimizer.param_groups[0]["lr"] for n, p in ours.parts.items()}
    assert rates == {"critic": 3e-3, "actor": 3e-3 / 8, "temperature": 3e-3}
    assert actor_loss is PARTS[1].loss


def test_an_optimizer_of_other_parameters_is_refused_by_name():
    model = network()
    greedy = part(optimizer=lambda _given: adamw(model.parameters()))
    with pytest.raises(ValueError, match=r"optimizer of part 'critic' updates actor\.0\.bias"):
        trainer_of(model=model, parts=[greedy, *PARTS[1:]])


def test_tied_weights_of_a_target_move_once():
    tied, single = network(), network()
    tied.critics[1][0].weight = tied.critics[0][0].weight
    tied.target = copy.deepcopy(tied.critics)
    for model in (tied, single):
        trainer = trainer_of("fp32", model)
        target = model.target[0][0].weight
        with torch.no_grad():
            model.critics[0][0].weight.add_(1.0)
        before = target.clone()
        for follower in trainer.parts["critic"].targets:
            follower.update(torch.zeros(()))
        torch.testing.assert_close(target - before, torch.full_like(target, 0.05))


def test_a_target_follows_buffers_that_are_replaced():
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)
            self.register_buffer("mean", torch.zeros(4))

        def forward(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.detach().float().mean(0)
            return self.linear(x - self.mean)

    def loss(forward, batch, _computed):
        return (forward.method("net", batch["observation"]) - batch["reward"]).square().mean()

    model = nn.ModuleDict({"net": Normed(), "copy": Normed()})
    value = Part(name="value", trains=["net"], optimizer=adamw, loss=loss)
    ours = trainer_of("fp32", model, [value], [Target(module="copy", source="net", tau=1.0)])
    for batch in batches(5):
        ours.train_batch(batch)
    assert torch.equal(model["copy"].mean, model["net"].mean)


def test_a_target_whose_buffers_differ_or_that_is_no_module_is_refused():
    model = network()
    model.target.register_buffer("more", torch.zeros(1))
    with pytest.raises(ValueError, match=r"'target' and its source 'critics'.*buffers"):
        trainer_of(model=model)
    with pytest.raises(ValueError, match="'log_alpha'"):
        trainer_of(targets=[Target(module="log_alpha", source="critics", tau=0.1)])


def test_what_is_handed_on_is_a_mapping_of_tensors():
    def reads(forward, batch, computed):
        assert "z" not in computed
        assert computed.get("z") is None
        return temperature_loss(forward, batch, computed)

    def writes(forward, batch, computed):
        computed["z"] = 1.0

    trainer_of(parts=[*PARTS[:2], replace(PARTS[2], loss=reads)]).train_batch(batches(1)[0])
    with pytest.raises(TypeError, match="'critic' hands on 'z', a float"):
        trainer_of(parts=[part(loss=writes), *PARTS[1:]]).train_batch(batches(1)[0])


def test_parts_in_another_order_do_not_resume():
    state = trainer_of(parts=[PARTS[1], PARTS[0]]).state_dict()
    with pytest.raises(ValueError, match=r"actor, critic.*critic, actor"):
        trainer_of(parts=PARTS[:2]).load_state_dict(state)


class NormedCritic(nn.Module):
    """An actor beside a critic with batch norm and spectral norm, whose buffers it writes."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(4, 2)
        first = nn.utils.parametrizations.spectral_norm(nn.Linear(2, 8))
        self.critic = nn.Sequential(first, nn.BatchNorm1d(8), nn.Linear(8, 1))

    def value(self, x: torch.Tensor) -> torch.Tensor:
        return self.critic(self.actor(x))


@pytest.mark.parametrize("host_decides", [True, False])
@pytest.mark.parametrize("bad", [torch.nan, 1e20])
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_skipped_step_restores_buffers_of_the_modules_of_other_parts(
    precision, bad, host_decides
):
    """The actor's loss runs the critic, so its skipped step has changed the critic's buffers."""
    torch.manual_seed(0)
    model = NormedCritic()
    before: list[dict[str, torch.Tensor]] = []

    def actor(forward, batch, _computed):
        before.append({name: buffer.clone() for name, buffer in model.named_buffers()})
        value = forward.method("value", batch["observation"] * batch["fault"])
        return (value * batch["fault"] ** 2).mean()

    def critic(forward, batch, _computed):
        return (forward.method("value", batch["observation"]) - batch["reward"]).square().mean()

    parts = [
        Part(name="critic", trains=["critic"], optimizer=adamw, loss=critic),
        Part(name="actor", trains=["actor"], optimizer=adamw, loss=actor),
    ]
    ours = trainer_of(precision, model, parts, ())
    for member in ours.parts.values():
        member.trainer._buffers.host_decides = host_decides
    for index, batch in enumerate(batches(8, bad=100)):
        is_bad = index % 2 == 1
        ours.train_batch(batch | {"fault": torch.tensor(bad if is_bad else 1.0)})
        kept = [torch.equal(now, before[-1][name]) for name, now in model.named_buffers()]
        assert all(kept) == any(kept[:3]) == is_bad, kept
    skipped = {name: part.trainer.get_stats() for name, part in ours.parts.items()}
    assert skipped["critic"]["applied_steps"] == 8
    assert skipped["actor"]["applied_steps"] == 4
