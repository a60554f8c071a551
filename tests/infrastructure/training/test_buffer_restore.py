from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.buffer_restore import BufferRestore
from tests.infrastructure.training.modules_with_state import MODULES, batches, network

CPU = torch.device("cpu")


def trainer_of(model, precision, *, host_decides=True, accumulate=1) -> FP16Trainer:
    """A trainer whose loss scale stays where it is, so that a skipped step leaves no trace."""
    config = FP16TrainingConfig(
        precision=Precision(precision),
        cpu_half=True,
        loss_scale=256.0,
        min_loss_scale=256.0,
        growth_interval=10**6,
        accumulate=accumulate,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    trainer = FP16Trainer(model, optimizer, config)
    trainer._buffers.host_decides = host_decides
    return trainer


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    different = [name for name in one if not torch.equal(one[name], other[name])]
    assert not different, different


@pytest.mark.parametrize(
    ("precision", "host_decides"),
    [("fp16", True), ("fp16", False), ("bf16", False), ("fp32", False)],
)
@pytest.mark.parametrize("name", MODULES)
def test_skipped_steps_leave_no_trace(name, precision, host_decides, loss_fn, read_counter):
    given, is_bad = batches(40, 16, precision)
    disturbed = trainer_of(network(name), precision, host_decides=host_decides)
    with read_counter() as counter:
        for batch in given:
            disturbed.train_batch(batch, loss_fn)
    if not host_decides:  # torch's cumulative average reads its counter
        assert counter.reads == (40 if name == "batch norm, cumulative" else 0)
    undisturbed = trainer_of(network(name), precision)
    for batch in itertools.compress(given, [not bad for bad in is_bad]):
        undisturbed.train_batch(batch, loss_fn)
    assert undisturbed.get_stats()["applied_steps"] == 24
    assert disturbed.get_stats()["applied_steps"] == 24
    assert_equal(state_of(disturbed.model), state_of(undisturbed.model))


@pytest.mark.parametrize("name", MODULES)
def test_a_window_of_micro_batches_is_restored_as_a_whole(name, loss_fn):
    given, is_bad = batches(60, 12, "fp16")
    windows = [range(start, start + 3) for start in range(0, 60, 3)]
    disturbed = trainer_of(network(name), "fp16", accumulate=3)
    for batch in given:
        disturbed.train_batch(batch, loss_fn)
    undisturbed = trainer_of(network(name), "fp16", accumulate=3)
    for window in windows:
        if not any(is_bad[index] for index in window):
            for index in window:
                undisturbed.train_batch(given[index], loss_fn)
    assert 0 < disturbed.get_stats()["applied_steps"] < 20
    assert_equal(state_of(disturbed.model), state_of(undisturbed.model))


@pytest.mark.parametrize("name", ["batch norm", "memory", "codebook", "constants"])
def test_a_compiled_model_is_restored(name, loss_fn):
    given, is_bad = batches(20, 6, "fp16")
    models = [network(name) for _ in range(2)]
    disturbed, undisturbed = (
        trainer_of(torch.compile(model, backend="aot_eager"), "fp16") for model in models
    )
    for batch, bad in zip(given, is_bad, strict=True):
        disturbed.train_batch(batch, loss_fn)
        if not bad:
            undisturbed.train_batch(batch, loss_fn)
    assert disturbed.get_stats()["applied_steps"] == 14
    assert_equal(state_of(models[0]), state_of(models[1]))


def test_what_changed_between_two_windows_is_kept(batch, loss_fn):
    trainer = trainer_of(network("batch norm"), "fp16")
    norm = trainer.model[1]
    trainer.train_batch(batch, loss_fn)
    norm.running_mean.data.fill_(7.0)
    norm.num_batches_tracked = torch.tensor(40)
    bad = {"x": batch["x"] * float("nan"), "y": batch["y"]}
    trainer.train_batch(bad, loss_fn)
    assert norm.running_mean.eq(7.0).all()
    assert norm.num_batches_tracked.item() == 40


def test_loaded_buffers_outlive_a_loss_that_was_computed_before(batch, loss_fn):
    trainer = trainer_of(network("batch norm"), "fp16")
    saved = trainer.state_dict()
    saved["model"] = {name: tensor.clone() for name, tensor in saved["model"].items()}
    saved["model"]["1.running_mean"].fill_(3.0)
    trainer.training_step(batch, loss_fn)  # never stepped
    trainer.load_state_dict(saved)
    bad = {"x": batch["x"] * float("nan"), "y": batch["y"]}
    trainer.train_batch(bad, loss_fn)
    assert trainer.model[1].running_mean.eq(3.0).all()


def test_the_sum_of_two_losses_is_one_window(batch, loss_fn):
    trainer = trainer_of(network("batch norm"), "fp16")
    before = state_of(trainer.model)
    bad = {"x": batch["x"] * float("nan"), "y": batch["y"]}
    loss = trainer.training_step(bad, loss_fn) + trainer.training_step(batch, loss_fn)
    trainer.step(loss)
    assert_equal(state_of(trainer.model), before)


def test_another_loss_that_saved_a_buffer_can_still_run_backward(batch, loss_fn):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)
            self.register_buffer("scale", torch.ones(1))

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) * self.scale

    trainer = trainer_of(Scaled(), "fp32", host_decides=False)
    inputs = batch["x"].clone().requires_grad_()
    other = (inputs[:, :1] * trainer.model.scale).sum()
    trainer.train_batch(batch, loss_fn)
    other.backward()
    assert inputs.grad is not None


def test_a_buffer_of_another_shape_or_device_is_left_as_it_is():
    model = nn.Module()
    model.register_buffer("grows", torch.zeros(0))
    model.register_buffer("elsewhere", torch.zeros(2, device="meta"))
    model.register_buffer("goes", torch.zeros(2))
    restore = BufferRestore(model, CPU)
    for _ in range(2):
        restore.open_window()
        model.grows.resize_(3).fill_(5.0)
        model.goes = None
        restore.close_window(torch.ones(()))
    assert model.grows.tolist() == [5.0, 5.0, 5.0]
    restore.open_window()
    model.grows.fill_(6.0)
    restore.close_window(torch.ones(()))
    assert model.grows.tolist() == [5.0, 5.0, 5.0]


def test_new_modules_are_restored_once_their_parameters_are_in_the_optimizer(batch, loss_fn):
    trainer = trainer_of(network("batch norm"), "fp16")
    trainer.train_batch(batch, loss_fn)
    norm = nn.BatchNorm1d(1)
    trainer.model.append(norm)
    trainer.optimizer.add_param_group({"params": list(norm.parameters())})
    bad = {"x": batch["x"] * float("nan"), "y": batch["y"]}
    trainer.train_batch(batch, loss_fn)
    before = state_of(trainer.model)
    trainer.train_batch(bad, loss_fn)
    assert_equal(state_of(trainer.model), before)


def bad_of(batch):
    return {"x": batch["x"] * float("nan"), "y": batch["y"]}


def test_a_loss_that_is_dropped_or_fails_leaves_nothing_that_is_not_finite(batch, loss_fn):
    def failing(forward, given):
        loss_fn(forward, given)
        raise ValueError("of the user")

    trainer = trainer_of(network("batch norm"), "fp32")
    trainer.training_step(bad_of(batch), loss_fn)
    trainer.train_batch(batch, loss_fn)
    with pytest.raises(ValueError, match="of the user"):
        trainer.training_step(bad_of(batch), failing)
    saved = trainer.state_dict()["model"]
    assert all(tensor.isfinite().all() for tensor in saved.values())
    expected = trainer_of(network("batch norm"), "fp32")
    expected.train_batch(batch, loss_fn)
    assert_equal(state_of(trainer.model), state_of(expected.model))


def test_what_changed_after_a_dropped_loss_outlives_a_skipped_step(batch, loss_fn):
    trainer = trainer_of(network("batch norm"), "fp32")
    trainer.training_step(batch, loss_fn)
    trainer.model[1].running_mean.fill_(7.0)
    trainer.train_batch(bad_of(batch), loss_fn)
    assert trainer.model[1].running_mean.eq(7.0).all()


def test_a_buffer_that_the_first_forward_pass_makes_is_restored_from_then_on(batch, loss_fn):
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not hasattr(self, "mean"):
                self.register_buffer("mean", torch.zeros(4))
            self.mean.lerp_(x.detach().mean(0), 0.1)
            return x - self.mean

    trainer = trainer_of(nn.Sequential(Late(), nn.Linear(4, 1)), "fp32")
    for given in (batch, batch, bad_of(batch), batch):
        trainer.train_batch(given, loss_fn)
    assert trainer.model[0].mean.isfinite().all()


def test_a_step_without_gradients_restores_what_its_nan_loss_has_left(batch):
    trainer = trainer_of(network("batch norm"), "fp32")
    head = trainer.model[3]
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, fused=True)
    other = FP16Trainer(trainer.model, optimizer, FP16TrainingConfig(precision=Precision.FP32))
    trunk = trainer.model[:2]
    before = state_of(trainer.model)
    other.train_batch(bad_of(batch), lambda _forward, given: trunk(given["x"]).sum())
    assert other.get_stats()["no_gradient_steps"] == 1
    assert_equal(state_of(trainer.model), before)


def test_sparse_and_uninitialised_buffers_are_left_alone(batch, loss_fn):
    model = network("batch norm")
    model.register_buffer("sparse", torch.eye(3).to_sparse())
    model.append(nn.LazyBatchNorm1d(affine=False))
    trainer = trainer_of(model, "fp32")
    for _ in range(2):
        trainer.train_batch(batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 2


@pytest.mark.parametrize("change", ["append", "replace"])
def test_parameters_added_to_or_taken_from_a_group_are_noticed(batch, loss_fn, change):
    trainer = trainer_of(network("batch norm"), "fp16")
    trainer.train_batch(batch, loss_fn)
    group, head = trainer.optimizer.param_groups[0], list(trainer.model[3].parameters())
    before = state_of(trainer.model)
    if change == "replace":
        group["params"] = head
    else:
        trainer.model.append(nn.Linear(1, 1))
        group["params"].extend(trainer.model[4].parameters())
    trainer.train_batch(batch, loss_fn)
    assert trainer.get_stats()["applied_steps"] == 2
    assert all(tensor.isfinite().all() for tensor in trainer.model.state_dict().values())
    assert torch.equal(before["0.weight"], trainer.model[0].weight) == (change == "replace")
    assert all(parameter.grad is None for parameter in head)
