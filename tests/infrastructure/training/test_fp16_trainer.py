from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn
from torch.utils import deterministic

from benchmarks.measuring.textbook import Textbook
from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from tests.infrastructure.training.losses import infinite_gradient

FP32_BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FUSED = ["adamw", "adam", "sgd", "adagrad"]
ALL = [*FUSED, "adamw-loop", "rmsprop", "sgd-dampening"]


def weights(loop: FP16Trainer | Textbook) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in loop.model.parameters()])


def overflowing_gradient(forward, batch):
    """Loss 0 and gradient 1e36: finite, and beyond float32 once scaled."""
    out = forward(batch["x"]).mean()
    return (out - out.detach()) * 1e36


def run(trainer, batch, loss_fn, steps=10):
    for _ in range(steps):
        trainer.step(trainer.training_step(batch, loss_fn))
    return trainer


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["adamw", "sgd", "adamw-loop"])
def test_matches_the_textbook_loop(make_trainer, make_optimizer, batch, loss_fn, precision, name):
    # 1024: an overflow on step 1 would ruin the textbook's fused SGD, whose momentum is unset
    trainer = make_trainer(precision, name, loss_scale=1024.0)
    model = copy.deepcopy(trainer.model)
    optimizer = make_optimizer[name](model.parameters())
    textbook = Textbook(model, optimizer, Precision(precision).compute, scale=1024.0)
    for _ in range(30):
        textbook.step(batch, lambda forward, b: loss_fn(lambda x: forward(x).float(), b))
    run(trainer, batch, loss_fn, 30)
    rounding = 1e-4 if precision != "bf16" else 1e-3  # of what is clipped, 30 steps on
    torch.testing.assert_close(weights(trainer), weights(textbook), rtol=rounding, atol=rounding)
    assert trainer.get_stats()["current_scale"] == textbook.scaler.get_scale()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("name", FUSED)
def test_reads_nothing_in_the_step(make_trainer, batch, loss_fn, read_counter, precision, name):
    trainer = run(make_trainer(precision, name), batch, loss_fn, 2)
    with read_counter() as counter:
        run(trainer, batch, loss_fn, 20)
    assert counter.reads == 0


def test_the_detector_sees_three_reads_in_the_naive_loop(batch, read_counter):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    textbook = Textbook(model, optimizer, scale=2.0, max_norm=None)

    def loss_of(forward, batch):
        return forward(batch["x"]).float().mean()

    textbook.step(batch, loss_of)
    with read_counter() as counter:
        before = textbook.scaler.get_scale()
        loss = textbook.step(batch, loss_of)
        overflowed = textbook.scaler.get_scale() < before
        loss.item()
    assert not overflowed
    assert counter.reads == 3


@pytest.mark.parametrize("name", ALL)
def test_overflow_on_the_first_step_leaves_everything_alone(make_trainer, batch, name):
    trainer = make_trainer("fp16", name)
    before = weights(trainer)
    trainer.step(trainer.training_step(batch, overflowing_gradient))
    stats = trainer.get_stats()
    assert torch.equal(weights(trainer), before)
    assert stats["overflow_steps"] == 1
    assert stats["nonfinite_loss_steps"] == 0
    assert stats["current_scale"] == 32768.0
    assert stats["overflow_rate"] == 1.0


@pytest.mark.parametrize("name", ALL)
def test_after_an_overflow_the_next_step_is_the_first(make_trainer, batch, loss_fn, name):
    """Nothing of the bad step survives: not in the moments, nor in the gradients."""
    clean = make_trainer("fp16", name, loss_scale=512.0)
    shaken = make_trainer("fp16", name, loss_scale=1024.0)
    shaken.step(shaken.training_step(batch, overflowing_gradient))
    run(clean, batch, loss_fn, 5)
    run(shaken, batch, loss_fn, 5)
    assert torch.equal(weights(clean), weights(shaken))


def test_an_overflow_on_the_first_step_leaves_momentum_unset(
    make_trainer, batch, loss_fn, monkeypatch
):
    """Torch's fused SGD would leave it uninitialised: such memory is NaN here, to be seen."""
    monkeypatch.setattr(deterministic, "fill_uninitialized_memory", True)
    trainer = make_trainer("fp16", "sgd", loss_scale=1024.0)
    torch.use_deterministic_algorithms(True)
    try:
        for loss in (infinite_gradient, loss_fn):
            run(trainer, batch, loss, 1)
    finally:
        torch.use_deterministic_algorithms(False)
    assert weights(trainer).isfinite().all()
    assert trainer.get_stats()["applied_steps"] == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_other_precisions_skip_nonfinite_gradients_too(make_trainer, batch, precision):
    trainer = make_trainer(precision)
    before = weights(trainer)

    trainer.step(trainer.training_step(batch, infinite_gradient))
    assert torch.equal(weights(trainer), before)
    assert trainer.get_stats()["overflow_steps"] == 1
    assert trainer.get_stats()["current_scale"] == 1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_nonfinite_loss_is_no_overflow(make_trainer, batch, loss_fn, precision, bad):
    trainer = run(make_trainer(precision), batch, loss_fn, 3)
    before = weights(trainer)
    state = trainer.state_dict()
    trainer.step(trainer.training_step(batch, lambda f, b: loss_fn(f, b) * bad))
    after = trainer.state_dict()
    assert torch.equal(weights(trainer), before)
    assert after["record"]["overflow_steps"] == state["record"]["overflow_steps"]
    assert after["record"]["nonfinite_loss_steps"] == 1
    assert after["loss_scale"] == state["loss_scale"]


def test_the_scale_never_falls_below_its_floor_and_the_model_survives(make_trainer, batch, loss_fn):
    """A naive GradScaler reaches 0 here, and its next good batch destroys the weights."""
    trainer = make_trainer("fp16", min_loss_scale=2.0**-4)
    for _ in range(200):
        trainer.step(trainer.training_step(batch, infinite_gradient))
    assert trainer.get_stats()["overflow_steps"] == 200
    assert trainer.get_stats()["current_scale"] == 2.0**-4
    before = weights(trainer)
    run(trainer, batch, loss_fn, 1)
    assert weights(trainer).isfinite().all()
    assert not torch.equal(weights(trainer), before)


def test_the_scale_grows_after_the_interval_and_stays_put_outside_fp16(
    make_trainer, batch, loss_fn
):
    trainer = make_trainer("fp16", loss_scale=8.0, growth_interval=5)
    run(trainer, batch, loss_fn, 11)
    assert trainer.get_stats()["current_scale"] == 32.0
    trainer.set_precision(FP32_BY_FLAG)
    run(trainer, batch, loss_fn, 20)
    assert trainer.get_stats()["current_scale"] == 1.0
    trainer.set_precision(FP16)
    assert trainer.get_stats()["current_scale"] == 32.0
    run(trainer, batch, loss_fn, 4)  # one clean step was parked with it
    assert trainer.get_stats()["current_scale"] == 64.0


@pytest.mark.parametrize("resumed", [False, True])
def test_fp16_left_at_its_floor_starts_from_the_initial_scale(make_trainer, batch, resumed):
    trainer = make_trainer(min_loss_scale=64.0, loss_scale=256.0)

    def overflow(forward, batch):
        value = forward(batch["x"]).mean()
        return (value - value.detach()) * 1e38

    for expected in (128.0, 64.0, 64.0):
        trainer.train_batch(batch, overflow)
        assert trainer.get_stats()["current_scale"] == expected
    half = trainer.precision_state
    trainer.set_precision(half)  # no flip: it stays where it is
    assert trainer.get_stats()["current_scale"] == 64.0
    trainer.set_precision(PrecisionState(requested="fp16", effective="fp32", reason="guard"))
    if resumed:
        state = trainer.state_dict()
        trainer = make_trainer(min_loss_scale=64.0, loss_scale=256.0)
        trainer.load_state_dict(state)
    trainer.set_precision(half)
    assert trainer.get_stats()["current_scale"] == 256.0


def test_a_flip_changes_the_compute_dtype_and_the_counters(make_trainer, batch, loss_fn):
    trainer = run(make_trainer("fp16"), batch, loss_fn, 4)
    seen = []

    def spying(forward, batch):
        handle = trainer.model[0].register_forward_hook(lambda *a: seen.append(a[-1].dtype))
        loss = loss_fn(forward, batch)
        handle.remove()
        return loss

    trainer.step(trainer.training_step(batch, spying))
    trainer.set_precision(FP32_BY_FLAG)
    trainer.step(trainer.training_step(batch, spying))
    assert seen == [torch.float16, torch.float32]
    stats = trainer.get_stats()
    assert (stats["training_steps"], stats["fp16_steps"]) == (6, 5)
    assert stats["precision_reason"] == "flag"


def test_no_flip_inside_an_accumulation_window(make_trainer, batch, loss_fn):
    trainer = run(make_trainer("fp16", accumulate=2), batch, loss_fn, 1)
    with pytest.raises(RuntimeError, match="1 of 2 micro-batches"):
        trainer.set_precision(FP32_BY_FLAG)
    with pytest.raises(RuntimeError, match="finish_window"):
        trainer.state_dict()


def test_no_state_is_loaded_inside_an_accumulation_window(make_trainer, batch, loss_fn, tmp_path):
    trainer = make_trainer("fp16", accumulate=2)
    state = trainer.state_dict()
    trainer.save_checkpoint(tmp_path / "a.pt")
    run(trainer, batch, loss_fn, 1)
    with pytest.raises(RuntimeError, match="between optimizer steps"):
        trainer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="between optimizer steps"):
        trainer.load_checkpoint(tmp_path / "a.pt")


def test_fp32_holds_inside_a_callers_autocast(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp32")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = trainer.training_step(batch, loss_fn)
        alone = trainer.forward(batch["x"])
    assert torch.equal(inside, trainer.training_step(batch, loss_fn))
    assert torch.equal(alone, trainer.forward(batch["x"]))


def test_a_callers_region_around_the_steps_freezes_no_weights(make_trainer, batch, loss_fn):
    """Until the outermost region ends, autocast computes with its first copies of the weights."""
    trainer = make_trainer("fp16", loss_scale=256.0)
    with torch.autocast("cpu", dtype=torch.float16):
        first = trainer.training_step(batch, loss_fn)
        trainer.step(first)
        assert not torch.equal(trainer.training_step(batch, loss_fn), first)


@pytest.mark.parametrize("region", [torch.no_grad, torch.inference_mode])
def test_a_target_computed_without_gradients_costs_the_loss_none(make_trainer, batch, region):
    """Before pytorch/pytorch#165068, autocast's copy of a weight kept the first call's mode."""
    trainer = make_trainer("fp16", loss_scale=64.0)
    before = weights(trainer)

    def bootstrapped(forward, batch):
        with region():
            target = forward(batch["x"])
        return (forward(batch["x"]) - target.clone() - 1.0).square().mean()

    run(trainer, batch, bootstrapped, 1)
    assert (weights(trainer) != before).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_accumulation_equals_one_large_batch(make_trainer, batch, loss_fn, precision):
    whole = make_trainer(precision, "sgd", loss_scale=256.0)
    parts = make_trainer(precision, "sgd", loss_scale=256.0, accumulate=4)
    for _ in range(5):
        whole.step(whole.training_step(batch, loss_fn))
        for i in range(4):
            micro = {k: v[8 * i : 8 * i + 8] for k, v in batch.items()}
            parts.step(parts.training_step(micro, loss_fn))
    assert parts.training_steps == whole.training_steps == 5
    tolerance = 1e-6 if precision == "fp32" else 2e-4
    torch.testing.assert_close(weights(parts), weights(whole), rtol=0, atol=tolerance)


def test_a_partial_window_averages_what_there_is(make_trainer, batch, loss_fn):
    whole = run(make_trainer("fp32", "sgd"), batch, loss_fn, 1)
    partial = run(make_trainer("fp32", "sgd", accumulate=8), batch, loss_fn, 3)
    assert partial.training_steps == 0
    partial.finish_window()
    assert partial.training_steps == 1
    torch.testing.assert_close(weights(partial), weights(whole), rtol=0, atol=1e-7)
    partial.finish_window()
    assert partial.training_steps == 1


def test_overflow_of_one_micro_batch_skips_the_whole_step(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", accumulate=2)
    before = weights(trainer)
    run(trainer, batch, loss_fn, 1)
    trainer.step(trainer.training_step(batch, overflowing_gradient))
    assert torch.equal(weights(trainer), before)
    assert trainer.get_stats()["overflow_steps"] == 1


def test_a_nan_loss_of_one_micro_batch_skips_the_whole_step(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", accumulate=2)
    before = weights(trainer)
    trainer.step(trainer.training_step(batch, lambda f, b: loss_fn(f, b) * math.nan))
    run(trainer, batch, loss_fn, 1)
    assert torch.equal(weights(trainer), before)
    assert trainer.get_stats()["nonfinite_loss_steps"] == 1
    assert trainer.get_stats()["overflow_steps"] == 0


@pytest.mark.parametrize("name", FUSED)
def test_a_gradient_that_first_appears_late(name):
    torch.manual_seed(0)
    early, late = nn.Linear(4, 1), nn.Linear(4, 1)
    model = nn.ModuleDict({"early": early, "late": late})
    from_name = {
        "adamw": torch.optim.AdamW,
        "adam": torch.optim.Adam,
        "adagrad": torch.optim.Adagrad,
    }
    optimizer = (
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
        if name == "sgd"
        else from_name[name](model.parameters(), lr=0.1, fused=True)
    )
    trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=8.0))
    x = torch.ones(2, 4)
    for head in ("early", "early", "late"):
        before = late.weight.detach().clone()
        trainer.step(trainer.training_step(x, lambda f, x, head=head: _head(trainer, head, x)))
        assert (head == "late") == (not torch.equal(late.weight.detach(), before))
    assert trainer.get_stats()["applied_steps"] == 3


def _head(trainer, head, x):
    return trainer.model[head](x).float().square().mean()


def test_a_step_without_gradients_is_counted_and_harmless(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", loss_scale=64.0)
    free = torch.ones((), requires_grad=True)
    before = weights(trainer)
    trainer.step(free * 2.0)
    assert torch.equal(weights(trainer), before)
    assert trainer.get_stats()["no_gradient_steps"] == 1
    assert not trainer.last_step_attempted
    run(trainer, batch, loss_fn, 1)
    assert trainer.get_stats()["applied_steps"] == 1


def test_clipping_bounds_the_unscaled_norm(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", "sgd", max_grad_norm=1e-3, loss_scale=1024.0)
    before = weights(trainer)
    run(trainer, batch, loss_fn, 1)
    moved = (weights(trainer) - before).norm().item()
    assert moved == pytest.approx(1e-3 * 1e-2, rel=1e-2)  # max norm times learning rate


def test_backward_and_step_returns_a_bool(make_trainer, batch, loss_fn):
    trainer = make_trainer("fp16", loss_scale=64.0)
    assert trainer.backward_and_step(trainer.training_step(batch, loss_fn)) is True
    bad = trainer.training_step(batch, overflowing_gradient)
    assert trainer.backward_and_step(bad) is False


def test_the_cpu_resolves_to_fp32_and_logs_the_reason():
    model = nn.Linear(2, 1)
    trainer = FP16Trainer(model, torch.optim.Adam(model.parameters()))
    stats = trainer.get_stats()
    assert stats["fp16_enabled"] is False
    assert stats["precision_effective"] == "fp32"
    assert stats["precision_reason"] == "no_accelerator"


@pytest.mark.parametrize(
    ("loss", "error", "words"),
    [
        (lambda f, b: 1.0, TypeError, "must be a tensor"),
        (lambda f, b: f(b["x"]), ValueError, "must be a scalar"),
        (lambda f, b: f(b["x"]).mean().half(), TypeError, "must be float32"),
        (lambda f, b: f(b["x"]).detach().mean(), ValueError, "does not depend"),
        (lambda f, b: f.encode(b["x"]), AttributeError, r"forward\.method\('encode'"),
    ],
)
def test_a_wrong_loss_is_named(make_trainer, batch, loss, error, words):
    with pytest.raises(error, match=words):
        make_trainer("fp16").training_step(batch, loss)


def test_an_optimizer_with_a_closure_is_refused():
    model = nn.Linear(2, 1)
    with pytest.raises(ValueError, match=r"LBFGS .*closure"):
        FP16Trainer(model, torch.optim.LBFGS(model.parameters()))


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_of_an_unfused_optimizer_continues_fused(batch, loss_fn, kind, steps):
    def made(seed, **options):
        torch.manual_seed(seed)
        model = nn.Linear(4, 1)
        momentum = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        optimizer = kind(model.parameters(), lr=0.01, **momentum, **options)
        return FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True, loss_scale=256.0))

    loop, fused = made(0), made(1, fused=True)
    run(loop, batch, loss_fn, steps)
    fused.load_state_dict(copy.deepcopy(loop.state_dict()))  # torch shares the tensors of a state
    assert all(group["fused"] for group in fused.optimizer.param_groups)
    for trainer in (loop, fused):
        run(trainer, batch, infinite_gradient, 1)  # finds momenta that were never made
        run(trainer, batch, loss_fn, 5)
    assert fused.get_stats()["overflow_steps"] == 1
    torch.testing.assert_close(weights(fused), weights(loop), rtol=1e-5, atol=1e-6)


def test_a_scale_that_waited_beyond_a_lower_growth_interval_grows(make_trainer, batch, loss_fn):
    patient = run(make_trainer(growth_interval=50, loss_scale=256.0), batch, loss_fn, 30)
    eager = make_trainer(growth_interval=10, loss_scale=256.0)
    eager.load_state_dict(patient.state_dict())
    run(eager, batch, loss_fn, 11)
    assert eager.get_stats()["current_scale"] == 1024.0


def test_sparse_gradients_are_refused_by_name():
    model = nn.EmbeddingBag(4, 2, sparse=True)
    trainer = FP16Trainer(model, torch.optim.SGD(model.parameters()))
    with pytest.raises(TypeError, match="sparse=False"):
        trainer.step(model(torch.tensor([[0, 1]])).mean())


@pytest.mark.parametrize("config", [{}, "fp16"])
def test_a_configuration_of_another_class_is_refused(config):
    model = nn.Linear(2, 1)
    with pytest.raises(TypeError, match=r"config must .*FP16TrainingConfig"):
        FP16Trainer(model, torch.optim.Adam(model.parameters()), config)


def test_adaptive_options_read_nothing_in_the_step(
    make_trainer, loss_fn, batch, spiked, read_counter
) -> None:
    trainer = make_trainer("fp16", adaptive_clip=True, adaptive_growth_interval=True)
    trainer.step(trainer.training_step(batch, loss_fn))
    with read_counter() as counter:
        for step in range(40):
            trainer.step(trainer.training_step(spiked(batch, step), loss_fn))
    assert counter.reads == 0


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize(
    ("wrong", "kind", "message"),
    [
        (1.0, TypeError, "tensor, got float"),
        (None, TypeError, "tensor, got NoneType"),
        (torch.ones(()), ValueError, "does not depend"),
        (torch.ones(3, requires_grad=True), ValueError, r"scalar, got shape \(3,\)"),
    ],
)
def test_a_wrong_loss_is_named_by_step(make_trainer, precision, wrong, kind, message):
    trainer = make_trainer(precision)
    for take in (trainer.step, trainer.backward_and_step):
        with pytest.raises(kind, match=message):
            take(wrong)
    assert trainer.training_steps == 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_second_step_with_the_same_loss_names_the_remedy(
    make_trainer, batch, loss_fn, accumulate
):
    trainer = make_trainer(accumulate=accumulate)
    loss = trainer.training_step(batch, loss_fn)
    trainer.step(loss)
    with pytest.raises(RuntimeError, match=r"graph .*training_st"):
        trainer.step(loss)
    trainer.step(trainer.training_step(batch, loss_fn))
    assert trainer.training_steps == 2 // accumulate


def test_an_error_in_the_backward_pass_stays_as_it_is(make_trainer, batch):
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, value):
            return value.clone()

        @staticmethod
        def backward(ctx, grad):
            raise ZeroDivisionError("of the model's author")

    trainer = make_trainer()
    with pytest.raises(ZeroDivisionError, match="of the model's author"):
        trainer.step(trainer.training_step(batch, lambda f, b: Failing.apply(f(b["x"])).mean()))
