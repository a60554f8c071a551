"""Without a GPU a tape stands in for a CUDA graph: it repeats operations, not Python."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import structlog
import torch
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from infrastructure.events.event import StepStats
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.cuda_graphs.graphed_trainer import (
    GraphedTrainer,
    graphs_unavailable_reason,
)
from infrastructure.training.diagnostics import RepeatedPasses
from infrastructure.training.loop import telemetry
from tests.infrastructure.training import modules_with_state
from tests.infrastructure.training.test_buffer_restore import trainer_of

FP32 = "fp32"


class Tape(TorchDispatchMode):
    """Keeps every operation with the very tensors it read and wrote, and runs it again on them.

    As with a CUDA graph, tensors that were computed while it was recorded are computed again
    in the same memory, and plain numbers stay constant.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if "_local_scalar_dense" in str(func):
            raise RuntimeError("operation not permitted when stream is capturing")
        result = func(*args, **kwargs)
        self.operations.append((func, args, kwargs, result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        for func, args, kwargs, result in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                if isinstance(old, torch.Tensor) and old is not new:
                    old.data.copy_(new)


class TapeRecorder:
    """Records steps on a CPU, and puts back what that changed: recording a graph does nothing.

    Args:
        state: Gives the tensors that a step changes in place.
    """

    def __init__(self, state) -> None:
        self.state, self.eager_steps = state, 0
        self.tapes: list[Tape] = []

    def run(self, step) -> None:
        self.eager_steps += 1
        step()

    def record(self, step):
        before = [(tensor, tensor.clone()) for tensor in self.state()]
        tape, random = Tape(), torch.get_rng_state()
        try:
            with tape:
                step()
        finally:
            torch.set_rng_state(random)
            with torch.no_grad():
                for tensor, value in before:
                    tensor.copy_(value)
        self.tapes.append(tape)
        return tape.replay


def changing_tensors(trainer):
    def tensors():
        optimizer = [t for s in trainer.optimizer.state.values() for t in s.values()]
        scale = [t for t in vars(trainer._loss_scale).values() if isinstance(t, torch.Tensor)]
        clip = trainer._optimizer_step.adaptive_clip
        own = [t for t in vars(clip).values() if isinstance(t, torch.Tensor)] if clip else []
        return [*trainer.model.parameters(), *trainer.model.buffers(), *optimizer, *scale, *own]

    return tensors


def graphed(trainer) -> tuple[GraphedTrainer, TapeRecorder]:
    recorder = TapeRecorder(changing_tensors(trainer))
    return GraphedTrainer(trainer, recorder), recorder


def batches(count: int, rows: int = 32):
    generator = torch.Generator().manual_seed(5)
    for index in range(count):
        x = torch.randn(rows, 4, generator=generator)
        x[0, 0] = 1e30 if index % 7 == 5 else x[0, 0]  # overflows FP16 and FP32
        yield {"x": x, "y": x[:, :1].clamp(-1, 1)}


def everything(trainer) -> list[torch.Tensor]:
    optimizer = [t for s in trainer.optimizer.state.values() for t in s.values()]
    return [*trainer.model.parameters(), *optimizer]


def counts(trainer):
    return {k: v for k, v in trainer.get_stats().items() if "precision" not in k}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd", "adagrad"])
def test_repeated_steps_are_the_same_steps(make_trainer, loss_fn, precision, optimizer):
    trainers = [
        make_trainer(precision, optimizer, loss_scale=2.0**15, growth_interval=4) for _ in "ab"
    ]
    graphs, recorder = graphed(trainers[0])
    for stepper in (graphs, trainers[1]):
        for batch in batches(20):
            stepper.train_batch(batch, loss_fn)
    assert (recorder.eager_steps, len(recorder.tapes)) == (3, 1)
    assert counts(trainers[0]) == counts(trainers[1])
    assert counts(trainers[0])["applied_steps"] < 20
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def test_telemetry_beside_graphs_changes_no_step(make_trainer, loss_fn, monkeypatch):
    monkeypatch.setattr(telemetry, "_COST_SHARE", math.inf)
    monkeypatch.setattr(telemetry, "_PAUSE_STEPS", 1)
    trainers = [make_trainer(loss_scale=2.0**15, growth_interval=4) for _ in "ab"]
    events = []
    for trainer, observed in zip(trainers, (True, False), strict=True):
        graphs, recorder = graphed(trainer)
        passes = RepeatedPasses(trainer.model, loss_fn, trainer.device)
        observer = telemetry.TelemetryObserver(passes, 1, events.append)
        observer.count(StepStats(step=0, applied=1, seconds=1.0, loss_scale=1.0, precision="fp16"))
        for batch in batches(20):
            if observed:
                observer.before_step(trainer, batch)
            graphs.train_batch(batch, loss_fn)
            if observed:
                observer.observe(trainer)
        assert (recorder.eager_steps, len(recorder.tapes)) == (3, 1)
    assert len(events) > 10
    assert all(each.stagnation is not None for each in events)
    assert counts(trainers[0]) == counts(trainers[1])
    assert all(map(torch.equal, *map(everything, trainers)))


@pytest.mark.parametrize(
    "options",
    [
        {"adaptive_growth_interval": True},
        {"adaptive_clip": True},
        {"adaptive_clip": True, "max_grad_norm": None},
        {"max_grad_norm": None},
    ],
)
def test_adaptive_options_work_in_a_graph(make_trainer, loss_fn, options):
    trainers = [make_trainer(loss_scale=2.0**15, growth_interval=2, **options) for _ in "ab"]
    graphs, _ = graphed(trainers[0])
    for stepper in (graphs, trainers[1]):
        for batch in batches(60):
            stepper.train_batch(batch, loss_fn)
    states = [trainer.state_dict() for trainer in trainers]
    assert states[0]["loss_scale"] == states[1]["loss_scale"]
    assert states[0]["record"] == states[1]["record"]
    torch.testing.assert_close(states[0]["adaptive_clip"], states[1]["adaptive_clip"])
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)


def test_modules_kept_in_fp32_stay_there_in_a_graph(make_trainer, loss_fn):
    trainers = [make_trainer(keep_fp32=["2"]) for _ in "ab"]
    seen = []
    trainers[0].model[2].register_forward_hook(lambda *a: seen.append(a[-1].dtype))
    graphs, recorder = graphed(trainers[0])
    for stepper in (graphs, trainers[1]):
        for batch in batches(8):
            stepper.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 1
    assert set(seen) == {torch.float32}
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def test_a_scheduler_moves_the_learning_rate_of_a_graph(make_trainer, loss_fn):
    trainers = [make_trainer("fp32") for _ in "ab"]
    graphs, recorder = graphed(trainers[0])
    for trainer, stepper in zip(trainers, (graphs, trainers[1]), strict=True):
        scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.7)
        for batch in batches(12):
            stepper.train_batch(batch, loss_fn)
            scheduler.step()
        assert isinstance(trainer.optimizer.param_groups[0]["lr"], float)
    assert len(recorder.tapes) == 1
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def test_one_graph_for_each_precision_and_shape(make_trainer, loss_fn):
    trainer = make_trainer("fp16", loss_scale=256.0)
    graphs, recorder = graphed(trainer)
    half = trainer.precision_state
    single = half.__class__(requested="fp16", effective=FP32, reason="flag")
    for _ in range(2):
        for wish in (half, single):
            trainer.set_precision(wish)
            for batch in batches(5):
                graphs.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 2
    assert counts(trainer)["fp16_steps"] == 10
    for batch in batches(3, rows=5):  # an odd last batch runs eagerly
        graphs.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 2
    for batch in batches(1, rows=5):
        graphs.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 3
    assert trainer.training_steps == 24


def test_too_many_shapes_run_eagerly_and_are_logged(make_trainer, loss_fn):
    trainer = make_trainer("fp32")
    graphs, recorder = graphed(trainer)
    with structlog.testing.capture_logs() as logs:
        for rows in range(1, 15):
            for batch in batches(4, rows):
                graphs.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 8
    assert [entry["event"] for entry in logs] == ["cuda_graph_refused"]
    assert trainer.training_steps == 14 * 4


def test_another_loss_function_has_a_graph_of_its_own(make_trainer, loss_fn):
    trainer = make_trainer("fp32")
    graphs, recorder = graphed(trainer)
    for batch in batches(5):
        graphs.train_batch(batch, loss_fn)
        graphs.train_batch(batch, lambda forward, batch: forward(batch["x"]).mean())
    assert len(recorder.tapes) == 1  # the lambda is another one each time
    assert trainer.training_steps == 10


def test_the_next_graph_works_on_a_loaded_state(make_trainer, loss_fn):
    trainers = [make_trainer() for _ in "ab"]
    graphs, recorder = graphed(trainers[0])
    for trainer, stepper in zip(trainers, (graphs, trainers[1]), strict=True):
        for batch in batches(6):
            stepper.train_batch(batch, loss_fn)
        state = trainer.state_dict()
        state = {**state, "model": {k: v.clone() for k, v in state["model"].items()}}
        for batch in batches(5):
            stepper.train_batch(batch, loss_fn)
        trainer.load_state_dict(state)
        for batch in batches(6):
            stepper.train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 2
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def nothing(forward, batch):
    return torch.zeros((), requires_grad=True) * 1.0


def reads(forward, batch):
    noise = torch.rand(batch["x"].shape)
    loss = nn.functional.mse_loss(forward(batch["x"] + noise), batch["y"])
    return loss * (2.0 if loss.item() > 0 else 1.0)


@pytest.mark.parametrize(("loss", "reason"), [(reads, "not permitted"), (nothing, "no gradients")])
def test_a_recording_that_fails_changes_nothing(make_trainer, loss, reason):
    trainers = [make_trainer() for _ in "ab"]
    graphs, _ = graphed(trainers[0])
    with structlog.testing.capture_logs() as logs:
        for stepper in (graphs, trainers[1]):
            torch.manual_seed(8)
            for batch in batches(8):
                stepper.train_batch(batch, loss)
    (entry,) = [entry for entry in logs if entry["event"] == "cuda_graph_refused"]
    assert reason in entry["reason"]
    assert graphs.refused_reason == entry["reason"]
    assert counts(trainers[0]) == counts(trainers[1])
    for ours, eager in zip(*map(everything, trainers), strict=True):
        assert torch.equal(ours, eager)


def test_a_recording_that_fails_ends_the_run_on_a_torch_that_does_not_survive_it(
    make_trainer, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.11.0"))
    trainer = make_trainer()
    graphs, _ = graphed(trainer)
    *warm_up, recorded = batches(4)
    for batch in warm_up:
        graphs.train_batch(batch, nothing)
    with pytest.raises(RuntimeError, match="cuda_graph=False"):
        graphs.train_batch(recorded, nothing)


def test_a_gradient_that_first_appears_while_recording_is_not_recorded(make_trainer):
    calls = iter(range(99))

    def late(forward, batch):
        value = forward(batch["x"])
        return value.mean() if next(calls) < 3 else (value + trainer.model[0].late).mean()

    trainer = make_trainer("fp32")
    trainer.model[0].late = nn.Parameter(torch.ones(()))
    trainer.optimizer.add_param_group({"params": [trainer.model[0].late]})
    trainer._parameters.append(trainer.model[0].late)
    graphs, _ = graphed(trainer)
    for batch in batches(4):
        graphs.train_batch(batch, late)
    assert "first gradient" in graphs.refused_reason
    assert trainer.optimizer.state[trainer.model[0].late]["step"] == 1


def test_gradients_from_outside_are_not_recorded(make_trainer, loss_fn):
    trainers = [make_trainer("fp32") for _ in "ab"]
    graphs, recorder = graphed(trainers[0])
    for batch in batches(5):
        trainers[0].training_step(batch, loss_fn).backward()
        graphs.train_batch(batch, loss_fn)
        trainers[1].train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 1
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-5, atol=1e-7)


def test_a_scheduler_that_moves_more_than_the_learning_rate_runs_eagerly(make_trainer, loss_fn):
    trainers = [make_trainer("fp32", "sgd") for _ in "ab"]
    graphs, recorder = graphed(trainers[0])
    for trainer, stepper in zip(trainers, (graphs, trainers[1]), strict=True):
        cycle = torch.optim.lr_scheduler.OneCycleLR(trainer.optimizer, 0.1, total_steps=20)
        for batch in batches(20):
            stepper.train_batch(batch, loss_fn)
            cycle.step()
    assert not recorder.tapes
    for ours, eager in zip(*map(everything, trainers), strict=True):
        assert torch.equal(ours, eager)


def test_a_batch_that_cannot_be_copied_is_named(make_trainer):
    class Odd:
        x = torch.ones(8, 4)

    trainer = make_trainer()
    graphs, _ = graphed(trainer)
    graphs.train_batch(Odd(), lambda forward, batch: forward(batch.x).mean())
    assert "a Odd" in graphs.refused_reason
    assert trainer.training_steps == 1


def test_a_cast_model_runs_eagerly(make_trainer, loss_fn, batch):
    trainer = make_trainer()
    graphs, _ = graphed(trainer)
    trainer.cast_model_to_fp16()
    graphs.train_batch(batch, loss_fn)
    assert "held in FP16" in graphs.refused_reason


@pytest.mark.parametrize(
    ("options", "unfused", "distributed", "reason"),
    [
        ({}, None, False, None),
        ({}, "it is slow", False, "reads the device: it is slow"),
        ({}, None, True, "ranks"),
        ({"accumulate": 2}, None, False, "micro-batches"),
        ({"detect_anomaly": True}, None, False, "detect_anomaly"),
    ],
)
def test_graphs_that_cannot_work_are_refused_at_once(options, unfused, distributed, reason):
    config = FP16TrainingConfig(cuda_graph=True, **options)
    found = graphs_unavailable_reason(config, torch.device("cuda", 0), unfused, distributed)
    assert found is None if reason is None else reason in found


def test_without_cuda_the_reason_is_logged_and_steps_are_eager(make_trainer, loss_fn, batch):
    trainer = make_trainer()
    with structlog.testing.capture_logs() as logs:
        graphs = GraphedTrainer(trainer)
    assert logs[0]["event"] == "cuda_graph_refused"
    assert "on CUDA only" in graphs.refused_reason
    graphs.train_batch(batch, loss_fn)
    assert trainer.training_steps == 1


@pytest.fixture
def cuda() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda", torch.cuda.current_device())


def cuda_trainer(device: torch.device, precision: str, optimizer, **config) -> FP16Trainer:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 64), nn.Dropout(0.1), nn.SiLU(), nn.Linear(64, 1)]
    model = nn.Sequential(*layers).to(device)
    config = {"loss_scale": 2.0**15, "growth_interval": 4, **config}
    return FP16Trainer(
        model,
        optimizer(model.parameters()),
        FP16TrainingConfig(precision=Precision(precision), **config),
    )


@pytest.mark.cuda
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", ["adamw", "adam", "sgd"])
def test_on_cuda_a_graph_takes_the_same_steps(cuda, make_optimizer, loss_fn, precision, name):
    options = {"adaptive_clip": True, "adaptive_growth_interval": True}
    trainers = [cuda_trainer(cuda, precision, make_optimizer[name], **options) for _ in range(2)]
    graphs = GraphedTrainer(trainers[0])
    for trainer, stepper in zip(trainers, (graphs, trainers[1]), strict=True):
        torch.manual_seed(11)  # dropout draws alike
        scheduler = torch.optim.lr_scheduler.ExponentialLR(trainer.optimizer, gamma=0.95)
        for batch in batches(40):
            on_device = {key: value.to(cuda) for key, value in batch.items()}
            stepper.train_batch(on_device, loss_fn)
            scheduler.step()
    assert graphs.refused_reason is None
    assert any(shape.graph for shape in graphs._shapes)
    assert counts(trainers[0]) == counts(trainers[1])
    assert counts(trainers[0])["overflow_steps"] + counts(trainers[0])["nonfinite_loss_steps"] > 0
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.cuda
def test_on_cuda_a_graph_step_waits_for_nothing(cuda, make_optimizer, loss_fn):
    graphs = GraphedTrainer(cuda_trainer(cuda, "fp16", make_optimizer["adamw"]))
    on_device = [{k: v.to(cuda) for k, v in batch.items()} for batch in batches(20)]
    for batch in on_device[:5]:
        graphs.train_batch(batch, loss_fn)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in on_device[5:]:
            graphs.train_batch(batch, loss_fn)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert graphs.refused_reason is None


@pytest.mark.cuda
def test_on_cuda_a_graph_works_after_a_flip_and_a_load(cuda, make_optimizer, loss_fn):
    trainers = [cuda_trainer(cuda, "fp16", make_optimizer["adamw"]) for _ in range(2)]
    graphs = GraphedTrainer(trainers[0])
    for trainer, stepper in zip(trainers, (graphs, trainers[1]), strict=True):
        torch.manual_seed(11)
        half = trainer.precision_state
        single = half.__class__(requested="fp16", effective="fp32", reason="flag")
        for wish in (half, single, half):
            trainer.set_precision(wish)
            for batch in batches(8):
                stepper.train_batch({k: v.to(cuda) for k, v in batch.items()}, loss_fn)
        state = copy.deepcopy(trainer.state_dict())
        trainer.load_state_dict(state)
        for batch in batches(8):
            stepper.train_batch({k: v.to(cuda) for k, v in batch.items()}, loss_fn)
    assert graphs.refused_reason is None
    assert counts(trainers[0]) == counts(trainers[1])
    for ours, eager in zip(*map(everything, trainers), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-6)


@pytest.mark.cuda
@pytest.mark.skipif(
    torch.__version__ < "2.13", reason="CUDA graphs of this torch do not survive it"
)
def test_on_cuda_a_recording_that_fails_changes_nothing(cuda, make_optimizer):
    trainers = [cuda_trainer(cuda, "fp16", make_optimizer["adamw"]) for _ in range(2)]
    graphs = GraphedTrainer(trainers[0])
    for stepper in (graphs, trainers[1]):
        torch.manual_seed(11)
        for batch in batches(8):
            stepper.train_batch({k: v.to(cuda) for k, v in batch.items()}, reads_on_cuda)
    assert "while recording" in graphs.refused_reason
    assert counts(trainers[0]) == counts(trainers[1])
    for ours, eager in zip(*map(everything, trainers), strict=True):
        assert torch.equal(ours, eager)


def reads_on_cuda(forward, batch):
    loss = nn.functional.mse_loss(forward(batch["x"]), batch["y"])
    return loss * (2.0 if loss.item() > 0 else 1.0)


@pytest.mark.parametrize("name", ["batch norm", "normaliser", "codebook", "queue", "range"])
def test_a_recorded_step_that_is_skipped_restores_the_buffers(name, loss_fn):
    given, is_bad = modules_with_state.batches(40, 12, "fp16")
    trainers = [trainer_of(modules_with_state.network(name), "fp16") for _ in "ab"]
    trainers[0]._buffers.host_decides = False  # as on an accelerator
    graphs, recorder = graphed(trainers[0])
    for batch, bad in zip(given, is_bad, strict=True):
        graphs.train_batch(batch, loss_fn)
        if not bad:
            trainers[1].train_batch(batch, loss_fn)
    assert len(recorder.tapes) == 1
    assert counts(trainers[0])["applied_steps"] == 28
    for ours, undisturbed in zip(*(t.model.state_dict().values() for t in trainers), strict=True):
        torch.testing.assert_close(ours, undisturbed)


def test_a_graph_leaves_the_gradients_of_others_alone(make_trainer):
    """The critic's parameters hold a gradient while the actor's step is recorded."""
    trainer, critic = make_trainer("fp32"), nn.Linear(1, 1)
    graphs, recorder = graphed(trainer)

    def loss(forward, batch):
        return critic(forward(batch["x"])).mean()

    for batch in batches(6):
        graphs.train_batch(batch, loss)
        if not recorder.tapes:
            left = {parameter: parameter.grad.clone() for parameter in critic.parameters()}
    assert len(recorder.tapes) == 1
    for parameter, gradient in left.items():
        assert torch.equal(parameter.grad, gradient)
