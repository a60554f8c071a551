"""Steps of a compiled model beside eager ones."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import structlog
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.testing import CompileCounterWithBackend

from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.precision.compiled_calls import CompiledCalls
from tests.infrastructure.training.cuda_graphs.test_graphed_trainer import graphed

FLIPS = {8: "fp32", 16: "bf16", 24: "fp16", 32: "fp32"}


class Network(nn.Module):
    """A trunk in half precision, and a head that computes in float32 by its own hand."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.trunk, self.norm = nn.Linear(8, 16), nn.BatchNorm1d(16)
        self.dropout, self.head = nn.Dropout(dropout), nn.Linear(16, 1)

    def encode(self, x: Tensor) -> Tensor:
        return self.dropout(torch.tanh(self.norm(self.trunk(x))))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encode(x)
        with torch.autocast("cpu", enabled=False):
            return self.head(code.float())


def mse(forward: Any, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(forward(x), x.sum(1, keepdim=True))


def mse_by_method(forward: Any, x: Tensor) -> Tensor:
    return nn.functional.mse_loss(forward.method("encode", x).sum(1), x.sum(1))


def with_gradient_penalty(forward: Any, x: Tensor) -> Tensor:
    given = x.clone().requires_grad_()
    values = forward(given)
    (slope,) = torch.autograd.grad(values.sum(), given, create_graph=True)
    return (values - x.sum(1, keepdim=True)).square().mean() + (slope.norm() - 1).square()


def batches(count: int, rows: int = 16) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, 8, generator=generator) for _ in range(count)]


def trainer_of(
    compiled: CompiledCalls | None, dropout: float = 0.0, wrap: Any = None, **config: Any
) -> FP16Trainer:
    torch.manual_seed(0)
    model = Network(dropout)
    options = {"loss_scale": 2.0**17, "growth_interval": 5, "cpu_half": True, **config}
    return FP16Trainer(
        model if wrap is None else wrap(model),
        torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True),
        FP16TrainingConfig(**options),
        compiled=compiled,
    )


def skips(
    trainer: FP16Trainer,
    given: list[Tensor],
    loss: Callable[..., Tensor] = mse,
    flips: dict[int, Any] | None = None,
) -> list[bool]:
    """Which of the steps with *given* were skipped."""
    skipped = []
    for index, batch in enumerate(given):
        if flips and index in flips:
            name = flips[index]
            trainer.set_precision(PrecisionState(requested=name, effective=name, reason="default"))
        trainer.train_batch(batch, loss)
        if trainer.at_step_boundary:
            skipped.append(bool(trainer.last_step_skipped))
    return skipped


def state(trainer: FP16Trainer) -> dict[str, Tensor]:
    return dict(trainer.model.state_dict())


def assert_equal(ours: FP16Trainer, eager: FP16Trainer) -> None:
    torch.testing.assert_close(state(ours), state(eager), rtol=0, atol=0)


def failing(*_: Any) -> Any:
    raise RuntimeError("no compiler here\nand more")


without_backward = aot_autograd(
    fw_compiler=lambda graph, _: make_boxed_func(graph), bw_compiler=failing
)


@pytest.fixture(autouse=True)
def _nothing_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("loss", [mse, mse_by_method])
@pytest.mark.parametrize("precision", list(Precision))
def test_compiled_steps_are_the_eager_ones(precision, loss):
    given = batches(40)
    given[20] = given[20] * torch.inf
    eager, ours = (
        trainer_of(None, precision=precision),
        trainer_of(CompiledCalls(backend="aot_eager"), precision=precision),
    )
    expected = skips(eager, given, loss)
    assert skips(ours, given, loss) == expected
    assert 1 <= sum(expected) < 20
    assert sum(expected) > 2 or precision is not Precision.FP16
    assert ours.scale_in_force == eager.scale_in_force
    assert_equal(ours, eager)
    assert ours.compiled.refused_reason is None


@pytest.mark.parametrize("precision", list(Precision))
def test_a_model_that_its_author_compiled_takes_the_eager_steps_too(precision):
    """Its backward pass would inherit autocast: pytorch #153044."""
    eager = trainer_of(None, precision=precision)
    ours = trainer_of(
        None, precision=precision, wrap=lambda model: torch.compile(model, backend="aot_eager")
    )
    assert skips(ours, batches(40)) == skips(eager, batches(40))
    torch.testing.assert_close(ours.state_dict()["model"], state(eager), rtol=0, atol=0)


def test_each_precision_and_shape_is_compiled_once():
    counter = CompileCounterWithBackend("aot_eager")
    given = [batch[: 16 - index % 3] for index, batch in enumerate(batches(40))]
    eager, ours = trainer_of(None), trainer_of(CompiledCalls(backend=counter))
    assert skips(ours, given, flips=FLIPS) == skips(eager, given, flips=FLIPS)
    assert counter.frame_count == 3 * 3
    assert_equal(ours, eager)
    skips(trainer_of(CompiledCalls(backend=counter), precision="fp32"), given)
    assert counter.frame_count == 3 * 3 + 3  # another trainer has compiled code of its own


def test_options_of_the_trainer_work_on_a_compiled_model():
    options = {"accumulate": 2, "keep_fp32": ["trunk"]}
    trainers = [
        trainer_of(each, dropout=0.3, **options)
        for each in (None, CompiledCalls(backend="aot_eager"))
    ]
    results = []
    for trainer in trainers:
        trainer.model.head.weight.requires_grad_(False)
        trainer.model.norm.weight = nn.Parameter(torch.ones(16).bfloat16(), requires_grad=False)
        trainer.set_precision(trainer.precision_state)  # sees the frozen half parameter
        torch.manual_seed(3)
        results.append(skips(trainer, batches(40), flips=FLIPS))
    assert results[0] == results[1]
    assert_equal(*trainers)


def test_the_model_stays_a_plain_one(tmp_path):
    counter = CompileCounterWithBackend("aot_eager")
    ours = trainer_of(CompiledCalls(backend=counter))
    names = list(state(ours))
    skips(ours, batches(5))
    count = counter.frame_count
    ours.model(batches(1)[0])
    copy.deepcopy(ours.model)(batches(1)[0])
    assert counter.frame_count == count
    assert list(state(ours)) == list(ours.state_dict()["model"]) == names
    ours.save_checkpoint(tmp_path / "a.pt")
    eager = trainer_of(None)
    eager.load_checkpoint(tmp_path / "a.pt")
    skips(ours, batches(9))
    skips(eager, batches(9))
    assert_equal(ours, eager)


def test_a_model_cast_to_fp16_is_compiled():
    trainers = [
        trainer_of(each, keep_fp32=["head"]) for each in (None, CompiledCalls(backend="aot_eager"))
    ]
    for trainer in trainers:
        trainer.cast_model_to_fp16()
    assert skips(trainers[0], batches(20)) == skips(trainers[1], batches(20))
    assert_equal(*trainers)


@pytest.mark.parametrize(
    ("backend", "loss"),
    [
        (failing, mse),
        (aot_autograd(fw_compiler=failing), mse),
        (without_backward, mse),
        ("aot_eager", with_gradient_penalty),
    ],
    ids=["compiler", "forward", "backward", "second derivative"],
)
def test_where_the_compiler_fails_steps_are_eager(backend, loss):
    eager, ours = trainer_of(None, 0.3), trainer_of(CompiledCalls(backend=backend), 0.3)
    torch.manual_seed(3)
    expected = skips(eager, batches(20), loss, FLIPS)
    torch.manual_seed(3)
    with structlog.testing.capture_logs() as logs:
        assert skips(ours, batches(20), loss, FLIPS) == expected
    assert_equal(ours, eager)
    (told,) = [entry for entry in logs if entry["event"] == "compile_refused"]
    assert told["reason"] == ours.compiled.refused_reason
    assert "\n" not in told["reason"]
    expected = "RuntimeError: no compiler here" if loss is mse else "backward"
    assert expected in told["reason"]


@pytest.mark.parametrize("first", range(3))
def test_a_window_is_taken_again_where_a_micro_batch_is_differentiated_twice(first):
    """Eager and compiled trainers agree bit for bit, also in buffers and random numbers."""
    results = []
    for compiled in (None, CompiledCalls(backend="aot_eager", on_refused=[].append)):
        trainer = trainer_of(compiled, dropout=0.3, accumulate=3, loss_scale=256.0)
        torch.manual_seed(3)
        for index, batch in enumerate(batches(9)):
            trainer.train_batch(batch, with_gradient_penalty if index >= first else mse)
        results.append(trainer)
    eager, ours = results
    assert "backward" in ours.compiled.refused_reason
    assert ours.get_stats() == eager.get_stats()
    assert_equal(ours, eager)


def test_random_numbers_drawn_between_the_micro_batches_are_drawn_once():
    """As by a data loader that shuffles or augments."""
    results = []
    for compiled in (None, CompiledCalls(backend="aot_eager", on_refused=[].append)):
        trainer = trainer_of(compiled, dropout=0.3, accumulate=3, loss_scale=256.0)
        torch.manual_seed(3)
        for index, batch in enumerate(batches(9)):
            noise = torch.randn_like(batch)
            trainer.train_batch(batch + noise, with_gradient_penalty if index >= 1 else mse)
        results.append(trainer)
    assert_equal(results[1], results[0])


def test_an_error_inside_a_window_that_comes_again_is_raised_and_the_window_goes_on():
    def failing_loss(forward: Any, x: Tensor) -> Tensor:
        raise RuntimeError(f"of the user, {forward(x).shape}")

    eager, ours = (
        trainer_of(each, accumulate=2, loss_scale=256.0)
        for each in (None, CompiledCalls(backend="aot_eager"))
    )
    first, second = batches(2)
    for trainer in (eager, ours):
        trainer.train_batch(first, mse)
        with pytest.raises(RuntimeError, match="of the user"):
            trainer.train_batch(first, failing_loss)
        trainer.train_batch(second, mse)
    assert ours.compiled.refused_reason is None
    assert ours.get_stats()["applied_steps"] == 1
    torch.testing.assert_close(ours.model.trunk.weight, eager.model.trunk.weight)


def test_the_forward_pass_shows_that_the_backward_pass_cannot_be_compiled():
    ours = trainer_of(CompiledCalls(backend=without_backward))
    loss = ours.training_step(batches(1)[0], mse)
    assert ours.compiled.refused_reason == "RuntimeError: no compiler here"
    ours.step(loss)


@pytest.mark.parametrize("inside", ["model", "loss"])
def test_an_error_of_the_job_itself_is_no_reason_to_refuse(inside):
    def loss(forward: Any, x: Tensor) -> Tensor:
        result = forward(x[:, :3] if inside == "model" else x)
        raise KeyError("y") if inside == "loss" else AssertionError(result)

    ours = trainer_of(CompiledCalls(backend="aot_eager"))
    with pytest.raises((KeyError, RuntimeError), match=r"y|shapes cannot be multiplied"):
        ours.train_batch(batches(1)[0], loss)
    assert ours.compiled.refused_reason is None
    skips(ours, batches(2))
    assert ours.compiled.refused_reason is None


def test_an_error_of_the_user_that_does_not_come_again_is_raised_and_no_reason_to_refuse():
    calls = []

    def once(forward: Any, x: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionError("of the user")
        return forward(x).square().mean()

    ours = trainer_of(CompiledCalls(backend="aot_eager"))
    with pytest.raises(ConnectionError):
        ours.train_batch(batches(1)[0], once)
    ours.train_batch(batches(1)[0], once)
    assert len(calls) == 2
    assert ours.compiled.refused_reason is None


def test_anomalies_are_looked_for_in_eager_steps():
    with structlog.testing.capture_logs() as logs:
        trainer_of(CompiledCalls(backend=failing), detect_anomaly=True)
    assert [entry["event"] for entry in logs] == ["compile_refused"]
    assert "detect_anomaly" in logs[0]["reason"]


def test_a_graph_records_compiled_steps():
    eager, ours = trainer_of(None), trainer_of(CompiledCalls(backend="aot_eager"))
    ours._buffers.host_decides = False  # as on CUDA
    graphs, recorder = graphed(ours)
    for batch in batches(20):
        eager.train_batch(batch, mse)
        graphs.train_batch(batch, mse)
    assert (recorder.eager_steps, len(recorder.tapes)) == (3, 1)
    torch.testing.assert_close(state(ours), state(eager))


@pytest.mark.process
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # torch's
def test_code_of_the_default_compiler_takes_the_same_steps_after_a_checkpoint(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("torch's inductor compiles by g++, which this machine lacks")
    given = batches(40)
    eager, whole = trainer_of(None), trainer_of(CompiledCalls())
    assert skips(whole, given[:20], flips=FLIPS) == skips(eager, given[:20], flips=FLIPS)
    whole.save_checkpoint(tmp_path / "a.pt")
    later = {0: "fp16", **FLIPS}
    skips(whole, given[20:], flips=later)
    torch.compiler.reset()
    resumed = trainer_of(CompiledCalls())
    resumed.load_checkpoint(tmp_path / "a.pt")
    skips(resumed, given[20:], flips=later)
    assert_equal(resumed, whole)
    assert whole.compiled.refused_reason is resumed.compiled.refused_reason is None
