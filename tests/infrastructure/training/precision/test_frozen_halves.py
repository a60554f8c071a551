"""A frozen base in a half type under an adapter that is trained, as with LoRA."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import structlog
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.diagnostics.fp32_check import check_fp32_step
from infrastructure.training.precision.compiled_calls import CompiledCalls
from infrastructure.training.trained_parameters import trained_parameters

CPU = torch.device("cpu")
HALVES = [torch.float16, torch.bfloat16]


class Adapted(nn.Module):
    """A frozen base with an embedding, and a low-rank adapter beside its linear layer."""

    def __init__(self, half: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(8, 16)
        self.base = nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16))
        self.embedding.requires_grad_(False).to(half)
        self.base.requires_grad_(False).to(half)
        self.down, self.up = nn.Linear(20, 2, bias=False), nn.Linear(2, 16, bias=False)
        self.head = nn.Linear(16, 1)

    def forward(self, x: Tensor, token: Tensor) -> Tensor:
        return self.head(self.encode(x, token))

    def encode(self, x: Tensor, token: Tensor) -> Tensor:
        inputs = torch.cat((x, self.embedding(token).to(x.dtype)), dim=1)
        return torch.tanh(self.base(inputs) + self.up(self.down(inputs)))


def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(forward(batch["x"], batch["token"]), batch["y"])


def loss_of_method(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return (
        (forward.method("encode", batch["x"], batch["token"]).mean(1) - batch["y"]).square().mean()
    )


def batches(count: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(8, 4, generator=generator),
            "token": torch.randint(8, (8,), generator=generator),
            "y": torch.randn(8, 1, generator=generator),
        }
        for _ in range(count)
    ]


def trainer_of(model: nn.Module, precision: str = "fp16", **config: Any) -> FP16Trainer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-2, fused=True)
    options = FP16TrainingConfig(
        precision=Precision(precision), cpu_half=True, loss_scale=256.0, **config
    )
    return FP16Trainer(model, optimizer, options)


def wish(precision: str) -> PrecisionState:
    return PrecisionState(requested="fp16", effective=precision, reason="override")


def trained_weights(model: nn.Module) -> list[Tensor]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("loss_fn", [loss, loss_of_method])
def test_fp32_is_exactly_that_of_a_base_in_float32(half, loss_fn):
    ours = trainer_of(Adapted(half), "fp32")
    whole = trainer_of(Adapted(half).float(), "fp32")
    for batch in batches(10):
        ours.train_batch(batch, loss_fn)
        whole.train_batch(batch, loss_fn)
    assert ours.model.base[0].weight.dtype == half
    pairs = zip(trained_weights(ours.model), trained_weights(whole.model), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize(("precision", "cast"), [("fp16", False), ("fp16", True), ("bf16", False)])
def test_precision_flips_live_and_the_base_stays_as_it_is(half, precision, cast):
    trainer = trainer_of(Adapted(half), precision)
    if cast:
        trainer.cast_model_to_fp16()
    before = copy.deepcopy(dict(trainer.model.base.state_dict()))
    first, *others = batches(9)
    losses = []
    for number, batch in enumerate(others):
        trainer.set_precision(wish("fp32" if number % 4 < 2 else precision))
        trainer.train_batch(batch, loss)
        losses.append(loss(trainer.forward, first).item())
    assert trainer.get_stats()["applied_steps"] == 8
    assert losses[-1] < losses[0]
    for name, tensor in trainer.model.base.state_dict().items():
        assert tensor.dtype == half
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize("half", HALVES)
def test_a_checkpoint_of_one_precision_is_resumed_in_the_other_bit_for_bit(half, tmp_path):
    path = tmp_path / "checkpoint.pt"
    undisturbed = trainer_of(Adapted(half), "fp16")
    for batch in batches(3):
        undisturbed.train_batch(batch, loss)
    undisturbed.save_checkpoint(path)
    resumed = trainer_of(Adapted(half), "fp32")
    resumed.load_checkpoint(path)
    undisturbed.set_precision(wish("fp32"))
    for batch in batches(5):
        undisturbed.train_batch(batch, loss)
        resumed.train_batch(batch, loss)
    states = [trainer.model.state_dict() for trainer in (undisturbed, resumed)]
    assert states[0]["base.0.weight"].dtype == half
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


class Recomputing(nn.Module):
    """A trained layer beside frozen half ones, recomputed in the backward pass or not."""

    def __init__(self, half: torch.dtype, reentrant: bool | None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base, self.norm = nn.Linear(4, 4), nn.LayerNorm(4)
        for module in (self.base, self.norm):
            module.to(half).requires_grad_(False)
        self.adapter, self.reentrant = nn.Linear(4, 4), reentrant

    def block(self, x: Tensor) -> Tensor:
        return self.norm(self.base(x)) + self.adapter(x)

    def forward(self, x: Tensor) -> Tensor:
        if self.reentrant is None:
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_recomputation_in_the_backward_pass_sees_what_the_forward_pass_saw(half, reentrant):
    def trained(how: bool | None) -> Tensor:
        model = Recomputing(half, how)
        trainer = FP16Trainer(
            model,
            torch.optim.SGD(model.adapter.parameters(), lr=0.1, fused=True),
            FP16TrainingConfig(cpu_half=True, loss_scale=64.0),
        )
        x = torch.ones(8, 4, requires_grad=True)
        for name in ("fp16", "fp32", "bf16"):  # live flips
            trainer.set_precision(PrecisionState(requested=name, effective=name, reason="default"))
            trainer.train_batch(x, lambda forward, x: forward(x).square().mean())
        assert trainer.get_stats()["applied_steps"] == 3
        assert model.base.weight.dtype == half
        return model.adapter.weight.detach()

    assert torch.equal(trained(reentrant), trained(None))


def test_a_module_kept_in_fp32_sees_its_frozen_halves_in_float32():
    trainer = trainer_of(Adapted(torch.bfloat16), "fp16", keep_fp32=["base"])
    dtypes = []
    trainer.model.base[0].register_forward_hook(lambda *given: dtypes.append(given[2].dtype))
    trainer.train_batch(batches(1)[0], loss)
    assert dtypes == [torch.float32]
    assert trainer.get_stats()["applied_steps"] == 1


def test_the_memory_of_fp32_is_told_before():
    model = Adapted(torch.bfloat16)
    model.big = nn.Linear(512, 512, bias=False).bfloat16().requires_grad_(False)
    with structlog.testing.capture_logs() as logs:
        trainer_of(model, "fp32")
    (told,) = (entry for entry in logs if entry["event"] == "frozen_half_parameters")
    assert (told["parameters"], told["mib_more_in_fp32"]) == (6, 1.0)


def test_a_compiled_model_flips_too():
    model = Adapted(torch.bfloat16)
    trainer = trainer_of(torch.compile(model, backend="aot_eager"), "fp16")
    for precision in ("fp16", "fp32", "fp16"):
        trainer.set_precision(wish(precision))
        trainer.train_batch(batches(1)[0], loss)
    assert trainer.get_stats()["applied_steps"] == 3


def test_the_check_of_fp32_passes_and_leaves_the_job_as_it_is():
    model = Adapted(torch.float16)
    job = TrainingJob(
        model=model,
        optimizer=lambda parameters: torch.optim.SGD(
            [parameter for parameter in parameters if parameter.requires_grad], lr=0.1
        ),
        batches=lambda _epoch: batches(2),
        loss=loss,
        evaluate=lambda _: Evaluation(metrics={"a": 1.0}, primary="a", higher_is_better=True),
        epochs=1,
    )
    check_fp32_step(job, CPU)
    assert model.base[0].weight.dtype == torch.float16


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_job_trains_evaluates_and_resumes(precision, make_job, train_in, tmp_path):
    model = nn.Sequential(nn.Linear(4, 16).bfloat16().requires_grad_(False), nn.Linear(16, 1))
    result, _ = train_in(make_job(model=model), tmp_path, precision)
    assert result.evaluation.metrics["mse"] > 0
    assert model[0].weight.dtype == torch.bfloat16


@pytest.mark.parametrize("half", HALVES)
def test_half_parameters_that_are_trained_are_refused_by_name(half):
    model = Adapted(half)
    model.base[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"base\.0\.weight is torch\.\w*float16.*requires_grad"):
        trained_parameters(model, torch.optim.SGD(model.head.parameters(), lr=0.1))


def test_a_frozen_parameter_of_eight_bits_is_refused():
    model = nn.Sequential(
        nn.Linear(2, 2).to(torch.float8_e4m3fn).requires_grad_(False), nn.Linear(2, 1)
    )
    with pytest.raises(ValueError, match=r"0\.weight is torch\.float8_e4m3fn"):
        trained_parameters(model, torch.optim.SGD(model[1].parameters(), lr=0.1))


def test_a_half_parameter_that_is_unfrozen_later_is_refused_by_name():
    model = Adapted(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=False)
    config = FP16TrainingConfig(precision=Precision.FP32)
    trainer = FP16Trainer(model, optimizer, config)
    trainer.train_batch(batches(1)[0], loss)
    model.base[0].weight.requires_grad_(True)
    with pytest.raises(ValueError, match=r"base\.0\.weight is torch\.bfloat16"):
        trainer.train_batch(batches(1)[0], loss)


def test_a_cast_keeps_what_something_else_has_changed_in_the_meantime():
    model = nn.ModuleDict({"net": nn.Linear(4, 1), "copy": nn.Linear(4, 1)})
    optimizer = torch.optim.AdamW(model["net"].parameters(), lr=1e-2, fused=True)
    config = FP16TrainingConfig(precision=Precision.FP16, cpu_half=True, loss_scale=256.0)
    trainer = FP16Trainer(model, optimizer, config)
    trainer.cast_model_to_fp16()
    with torch.no_grad():
        model["copy"].bias.fill_(3.0)
    kept = model["copy"].weight.float().clone()
    saved = trainer.state_dict()["model"]
    assert saved["copy.bias"].item() == 3.0
    torch.testing.assert_close(saved["copy.weight"], kept, rtol=1e-3, atol=1e-3)


class Replacing(nn.Module):
    """A frozen normaliser whose forward pass replaces its buffer, and has one that is expanded."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.register_buffer("mean", torch.zeros(8))
        self.register_buffer("one", torch.ones(1).expand(8))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0).to(self.mean.dtype)
        return (x - self.mean) * self.scale * self.one


def normed(half: torch.dtype, norm: nn.Module, *, training: bool) -> nn.Module:
    torch.manual_seed(0)
    base = nn.Sequential(nn.Linear(4, 8), norm).requires_grad_(False).to(half)
    return nn.Sequential(base.train(training), nn.Linear(8, 1))


def squares(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return forward(batch["x"]).square().mean()


NORMS = {
    "batch norm": lambda: nn.BatchNorm1d(8),
    "without weights": lambda: nn.BatchNorm1d(8, affine=False),
    "replacing": Replacing,
}


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NORMS)
def test_a_frozen_half_module_with_half_buffers_trains_what_is_around_it(
    name, training, precision, half
):
    trainer = trainer_of(normed(half, NORMS[name](), training=training), precision)
    exact = normed(half, NORMS[name](), training=training).float()
    whole = trainer_of(exact, precision)
    before = copy.deepcopy(trainer.model[0].state_dict())
    for batch in batches(4):
        trainer.train_batch(batch, squares)
        whole.train_batch(batch, squares)
    assert trainer.get_stats()["applied_steps"] == 4
    after = trainer.model[0].state_dict()
    changed = {key for key, tensor in after.items() if not torch.equal(tensor, before[key])}
    assert changed == (
        {key for key in after if "mean" in key or "ing_var" in key or "num" in key}
        if training
        else set()
    )
    assert {tensor.dtype for key, tensor in after.items() if "num" not in key} == {half}
    for key, tensor in exact[0].state_dict().items():
        torch.testing.assert_close(after[key].to(tensor.dtype), tensor, rtol=2e-2, atol=2e-2)
    if precision == "fp32" and not training:
        assert torch.equal(trainer.model[1].weight, whole.model[1].weight)


def test_a_skipped_step_restores_half_buffers():
    trainer = trainer_of(normed(torch.bfloat16, nn.BatchNorm1d(8), training=True), "fp32")
    first, bad = batches(2)
    trainer.train_batch(first, squares)
    before = copy.deepcopy(trainer.model[0].state_dict())
    trainer.train_batch(bad | {"x": bad["x"] * torch.nan}, squares)
    after = trainer.model[0].state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("keep", [(), ("0.1",)])
def test_half_buffers_of_compiled_and_of_kept_modules_are_the_eager_ones(precision, keep):
    trainers = []
    for compiled in (None, CompiledCalls(backend="aot_eager")):
        model = normed(torch.float16, nn.BatchNorm1d(8), training=True)
        config = FP16TrainingConfig(
            precision=Precision(precision), cpu_half=True, loss_scale=256.0, keep_fp32=keep
        )
        optimizer = torch.optim.AdamW(model[1].parameters(), lr=1e-2, fused=True)
        trainers.append(FP16Trainer(model, optimizer, config, compiled=compiled))
    for trainer in trainers:
        for batch in batches(3):
            trainer.train_batch(batch, squares)
    eager, ours = (trainer.model.state_dict() for trainer in trainers)
    assert trainers[1].compiled.refused_reason is None
    for name in eager:
        torch.testing.assert_close(ours[name], eager[name])
    assert ours["0.1.running_mean"].abs().sum() > 0
