from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from torch import nn

from infrastructure.events import PrecisionState
from infrastructure.fleet import Fleet, FleetMember
from infrastructure.training import FP16Trainer
from tests.infrastructure.fleet.twins import KINDS, Twins, fail, loss, perceptron

WIDTHS = st.sampled_from([1, 2, 3, 5, 7, 8, 16, 17, 32, 64])
ACTIVATIONS = st.sampled_from([nn.SiLU, nn.ReLU, nn.Tanh, nn.GELU, nn.Softplus, nn.Identity])
PRECISIONS = st.sampled_from(["fp32", "fp16", "bf16"])


def batch(seed: int, rows: int, widths: list[int], **more: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    x_BI = torch.randn(rows, widths[0], generator=generator)
    if more.get("kind") == "nan batch":
        x_BI[0] = float("nan")
    y_BO = torch.randn(rows, widths[-1], generator=generator)
    labels_B = torch.randint(widths[-1], (rows,), generator=generator)
    return {"x": x_BI, "y": y_BO, "labels": labels_B, **more}


def to(precision: Any) -> PrecisionState:
    return PrecisionState(requested="fp16", effective=precision, reason="operator")


def two(widths: list[int] | None = None, **config: Any) -> Twins:
    widths = widths or [8, 16, 4]
    twins = Twins(partial(perceptron, widths, nn.SiLU, 0.0))
    for i in range(2):
        twins.join(f"m{i}", seed=i, **config)
    return twins


@pytest.mark.process  # trains for seconds
@settings(max_examples=25)
@given(data=st.data())
def test_every_member_has_the_bits_of_a_training_of_its_own(data: st.DataObject) -> None:
    draw = data.draw
    widths = draw(st.lists(WIDTHS, min_size=2, max_size=4), label="widths")
    rows = draw(st.sampled_from([1, 2, 7, 16, 32, 33]), label="rows")
    dropout = draw(st.sampled_from([0.0, 0.0, 0.3]), label="dropout")
    twins = Twins(partial(perceptron, widths, draw(ACTIVATIONS), dropout))

    def join(number: int) -> None:
        twins.join(
            f"m{number}",
            seed=number,
            lr=draw(st.sampled_from([1e-2, 3e-3])),
            precision=draw(PRECISIONS, label=f"precision of m{number}"),
            max_grad_norm=draw(st.sampled_from([1.0, 1.0, 0.01, None])),
            adaptive_clip=draw(st.sampled_from([False, False, False, True])),
            optimizer=draw(st.sampled_from([torch.optim.AdamW] * 4 + [torch.optim.SGD])),
        )

    for number in range(draw(st.integers(2, 4), label="members")):
        join(number)
    for step in range(5):
        for name in twins.fleet.members:
            action = draw(st.sampled_from([""] * 8 + ["precision", "leave"]), label=f"{name} then")
            if action == "precision":
                precision = draw(PRECISIONS)
                twins.alone[name].set_precision(to(precision))
                twins.in_fleet[name].set_precision(to(precision))
            elif action == "leave":
                twins.fleet.leave(name)
        if draw(st.integers(0, 5), label="joins") == 0:
            join(len(twins.names))
        kinds = st.sampled_from([*KINDS, "late error"] if step > 1 else KINDS)
        batches = {}
        for name in twins.fleet.members:
            if draw(st.integers(0, 9), label=f"{name} pauses") == 0:
                continue
            odd = draw(st.integers(0, 9), label=f"{name} has an odd batch") == 0
            kind = draw(kinds, label=f"batch of {name}")
            batches[name] = batch(100 * step + int(name[1:]), rows + odd, widths, kind=kind)
        order = draw(st.permutations(list(batches)), label="order")
        twins.step({name: batches[name] for name in order})
    twins.check()


@pytest.mark.parametrize("width", [64, 17])
def test_plain_steps_are_stacked_and_equal(width: int) -> None:
    widths = [16, width, width, 16]
    twins = Twins(partial(perceptron, widths, nn.SiLU, 0.0))
    for i in range(5):
        twins.join(f"m{i}", seed=i, precision="fp32", max_grad_norm=1e-3)
    assert dict(twins.fleet.alone) == {}
    for step in range(6):
        twins.step({f"m{i}": batch(10 * step + i, 32, widths) for i in range(5)})
    twins.check()
    places = [next(t.model.parameters()).data_ptr() for t in twins.in_fleet.values()]
    assert {b - a for a, b in pairwise(places)} == {4 * 16 * width}  # one stack


@pytest.mark.parametrize("last", [nn.Tanh, nn.Sigmoid, nn.ReLU, nn.SiLU])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_model_that_ends_with_an_activation_has_the_bits_of_its_own(
    last: type[nn.Module], dropout: float
) -> None:
    """Its derivative may read the output, which the loss must not have written over."""
    widths = [16, 32, 16]

    def build() -> nn.Module:
        return nn.Sequential(*perceptron(widths, nn.SiLU, dropout), last())

    twins = Twins(build)
    for i in range(2):
        twins.join(f"m{i}", seed=i, precision="fp32")
    for step in range(3):
        twins.step({f"m{i}": batch(10 * step + i, 32, widths) for i in range(2)})
    assert dict(twins.fleet.alone) == {}
    twins.check()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_poisoned_member_touches_no_other(precision: str) -> None:
    twins = two(precision=precision)
    for step in range(4):
        twins.step(
            {
                "m0": batch(step, 8, [8, 16, 4]),
                "m1": batch(step, 8, [8, 16, 4], kind="nan batch"),
            }
        )
    twins.check()
    stats = {name: twins.in_fleet[name].get_stats() for name in twins.names}
    assert stats["m0"]["applied_steps"] == 4
    assert stats["m1"]["nonfinite_loss_steps"] == 4


def test_an_overflow_lowers_the_scale_of_its_member_only() -> None:
    twins = two(precision="fp16")
    twins.step(
        {
            "m0": batch(0, 8, [8, 16, 4]),
            "m1": batch(1, 8, [8, 16, 4], kind="overflow"),
        }
    )
    twins.check()
    assert twins.in_fleet["m0"].get_stats()["current_scale"] == 1024.0
    assert twins.in_fleet["m1"].get_stats()["current_scale"] == 512.0


@pytest.mark.parametrize("kind", ["early error", "late error", "backward error"])
def test_a_failing_member_leaves_and_the_others_take_their_step(kind: str) -> None:
    twins = two(precision="fp32")
    twins.join("m2", seed=2, precision="fp32")
    for step in range(3):
        batches = {name: batch(step, 8, [8, 16, 4]) for name in twins.fleet.members}
        if step == 1:
            batches["m1"]["kind"] = kind
        failed = twins.step(batches)
        assert list(failed) == (["m1"] if step == 1 else [])
    twins.check()
    assert list(twins.fleet.members) == ["m0", "m2"]
    assert twins.in_fleet["m2"].training_steps == 3


def test_a_failure_that_comes_back_in_every_step_together_is_logged_once() -> None:
    def fails_together(_: FP16Trainer) -> Any:
        def loss(forward: Any, batch: Any) -> Any:
            out = forward(batch["x"])
            if type(out.grad_fn).__name__ == "UnbindBackward0":  # a slice of a stack
                out = out.clone()
                out.register_hook(fail)
            return out.square().mean()

        return loss

    twins = Twins(partial(perceptron, [8, 16, 4], nn.SiLU, 0.0), fails_together)
    twins.join("m0", seed=0, precision="fp32")
    twins.join("m1", seed=1, precision="fp32")
    with capture_logs() as logs:
        for step in range(3):
            twins.step({name: batch(step, 8, [8, 16, 4]) for name in twins.names})
    twins.check()
    assert [line["event"] for line in logs] == ["stacked_step_failed"]


def test_what_a_loss_keeps_does_not_change_later() -> None:
    """A step writes to the memory of the step before it, but not to what a loss was given."""
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    def keeps(_: FP16Trainer) -> Any:
        def own_loss(forward: Any, batch: Any) -> Any:
            out = forward(batch["x"])
            error = (out - batch["y"]).square().mean()
            kept.append((out.detach(), out.detach().clone()))
            return error

        return own_loss

    twins = Twins(partial(perceptron, [8, 16, 4], nn.SiLU, 0.0), keeps)
    twins.join("m0", seed=0, precision="fp32")
    twins.join("m1", seed=1, precision="fp32")
    for step in range(4):
        twins.step({name: batch(step, 32, [8, 16, 4]) for name in twins.names})
    twins.check()
    assert dict(twins.fleet.alone) == {}
    assert all(torch.equal(out, copy) for out, copy in kept)


def test_a_batch_of_other_width_costs_its_member_only() -> None:
    twins = two(precision="fp32")
    failed = twins.step({"m0": batch(0, 8, [8, 16, 4]), "m1": batch(1, 8, [5, 16, 4])})
    assert "shapes cannot be multiplied" in str(failed["m1"])
    assert twins.in_fleet["m0"].training_steps == 1


@pytest.mark.parametrize(
    ("kind", "reason"),
    [("twice", "more than once"), ("random", "draws random numbers")],
)
def test_a_loss_that_cannot_be_stacked_trains_alone(kind: str, reason: str) -> None:
    twins = two(precision="fp32")
    for step in range(3):
        twins.step(
            {
                "m0": batch(step, 8, [8, 16, 4]),
                "m1": batch(step, 8, [8, 16, 4], kind=kind),
            }
        )
    twins.check()
    assert reason in twins.fleet.alone["m1"]


def test_a_loss_that_uses_parameters_directly_trains_alone() -> None:
    """Their gradients would not be those of the stacks."""

    def decayed(trainer: FP16Trainer) -> Any:
        weights = trainer.model.get_parameter("0.weight")
        return lambda forward, batch: loss(forward, batch) + 0.1 * weights.square().sum()

    twins = Twins(partial(perceptron, [8, 16, 4], nn.SiLU, 0.0), decayed)
    twins.join("m0", seed=0, precision="fp32")
    twins.join("m1", seed=1, precision="fp32")
    for step in range(2):
        twins.step({name: batch(step, 8, [8, 16, 4]) for name in twins.names})
    twins.check()
    assert "parameters directly" in twins.fleet.alone["m0"]


def test_batches_may_come_in_any_order() -> None:
    twins = two(precision="fp32")
    for step in range(4):
        names = twins.names if step % 2 else twins.names[::-1]
        twins.step({name: batch(step * 10 + int(name[1:]), 32, [8, 16, 4]) for name in names})
    twins.check()


def test_a_late_member_joins_and_a_checkpoint_loads_between_steps() -> None:
    twins = two(precision="bf16")
    for step in range(6):
        if step == 2:
            twins.join("m2", seed=2, precision="bf16")
            saved = twins.alone["m0"].state_dict()
            saved = torch.load(_bytes(saved), weights_only=True)
        if step == 4:
            twins.alone["m0"].load_state_dict(saved)
            twins.in_fleet["m0"].load_state_dict(saved)
        twins.step({n: batch(step, 8, [8, 16, 4]) for n in twins.fleet.members})
    twins.check()
    assert dict(twins.fleet.alone) == {}


def test_members_that_pause_and_return_are_stepped_together() -> None:
    twins = two(precision="fp32")
    twins.join("m2", seed=2, precision="fp32")
    with capture_logs() as logs:
        for step, members in enumerate([3, 3, 3, 2, 2, 3, 3]):
            twins.step({n: batch(step, 8, [8, 16, 4]) for n in twins.names[:members]})
    assert [line["event"] for line in logs] == []
    twins.check()


@pytest.mark.parametrize("replaced", ["weight", "moment"])
def test_tensors_that_others_put_in_place_between_steps_are_used(replaced: str) -> None:
    twins = two(precision="fp32")
    for step in range(6):
        if step == 3:  # all of the fleet's own tensors are known since the second step
            for trainer in (twins.in_fleet["m1"], twins.alone["m1"]):
                last = list(trainer.model.parameters())[-1]
                if replaced == "weight":
                    last.data = torch.full_like(last, 0.25)
                else:
                    trainer.optimizer.state[last]["exp_avg_sq"] = torch.full_like(last, 0.25)
        twins.step({name: batch(step, 32, [8, 16, 4]) for name in twins.names})
    twins.check()


def _bytes(state: Any) -> Any:
    from io import BytesIO

    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_a_member_saves_as_many_bytes_as_alone() -> None:
    twins = two(precision="fp32")
    for step in range(2):  # the second moves the optimizers' state to the stacks
        twins.step({n: batch(step, 8, [8, 16, 4]) for n in twins.names})
    assert dict(twins.fleet.alone) == {}
    member, alone = (each["m0"].state_dict() for each in (twins.in_fleet, twins.alone))
    assert len(_bytes(member).getvalue()) == len(_bytes(alone).getvalue())


def test_who_leaves_has_memory_of_its_own() -> None:
    twins = two(precision="fp32")
    twins.step({n: batch(0, 8, [8, 16, 4]) for n in twins.names})
    trainer = twins.fleet.leave("m0").trainer
    before = [p.detach().clone() for p in trainer.model.parameters()]
    twins.step({"m1": batch(1, 8, [8, 16, 4])})
    assert all(map(torch.equal, before, trainer.model.parameters()))
    sizes = [p.untyped_storage().nbytes() == p.numel() * 4 for p in trainer.model.parameters()]
    assert all(sizes)
    assert twins.fleet.alone["m1"] == "no other member's model has its shape"


def test_a_name_is_taken_once() -> None:
    twins = two()
    remedy = "the fleet has a member 'm0': let it leave first, or use another name"
    with pytest.raises(ValueError, match=remedy):
        twins.fleet.join("m0", twins.fleet.members["m0"])


def test_dropout_needs_a_generator() -> None:
    model = perceptron([4, 4, 4], nn.ReLU, 0.5)
    trainer = FP16Trainer(model, torch.optim.AdamW(model.parameters(), fused=True))
    fleet = Fleet()
    fleet.join("a", FleetMember(trainer=trainer, loss=loss))
    assert "no generator" in fleet.alone["a"]
