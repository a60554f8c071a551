"""Models of peft: a LoRA adapter over a language model whose base is float32 or half."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState
from infrastructure.events.command import Stop
from infrastructure.events.event import BaseEvent, Resumed
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision, loop
from infrastructure.training.checkpoints import CheckpointError, read_checkpoint
from infrastructure.training.diagnostics.fp32_check import check_fp32_step

# transformers warns of a property of its own that peft reads
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

CPU = torch.device("cpu")
BASES = [torch.float32, torch.float16, torch.bfloat16]
PRECISIONS = ["fp32", "fp16", "bf16"]
LORA = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def base_of(dtype: torch.dtype, seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        initializer_range=0.2,
    )
    return LlamaForCausalLM(config).to(dtype)


def adapted(dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> nn.Module:
    base = base_of(dtype, seed)
    torch.manual_seed(1)
    return peft.get_peft_model(base, peft.LoraConfig(**LORA))


def injected(dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> nn.Module:
    """The adapter inside the model, which keeps its own class, as transformers does it."""
    base = base_of(dtype, seed)
    torch.manual_seed(1)
    base.add_adapter(peft.LoraConfig(**LORA))
    for parameter in base.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return base


def batches(epoch: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(epoch)
    ids = torch.randint(0, 16, (4, 4, 6), generator=generator)
    return [{"input_ids": each, "labels": each} for each in ids]


def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return forward(**batch, use_cache=False).loss


def trainer_of(model: nn.Module, precision: str) -> FP16Trainer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    config = FP16TrainingConfig(precision=Precision(precision), cpu_half=True, loss_scale=256.0)
    return FP16Trainer(model, optimizer, config)


def train(trainer: FP16Trainer, epochs: int) -> None:
    for batch in [each for epoch in range(epochs) for each in batches(epoch)]:
        trainer.train_batch(batch, loss)


def job_of(model: nn.Module) -> TrainingJob:
    def evaluate(forward: Any) -> Evaluation:
        value = loss(forward, batches(9)[0]).item()
        return Evaluation(metrics={"loss": value}, primary="loss", higher_is_better=False)

    return TrainingJob(
        model=model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
        batches=batches,
        loss=loss,
        evaluate=evaluate,
        epochs=2,
    )


def weights(model: nn.Module) -> list[Tensor]:
    return list(model.state_dict().values())


@pytest.mark.parametrize(
    ("build", "dtype", "precision"),
    [  # each two of them together once at least
        ((adapted, injected)[(place + number) % 2], dtype, precision)
        for place, dtype in enumerate(BASES)
        for number, precision in enumerate(PRECISIONS)
    ],
)
def test_it_trains_and_resumes_bit_for_bit_with_the_adapter_alone(
    build, dtype, precision, tmp_path
):
    path = tmp_path / "checkpoint.pt"
    undisturbed = trainer_of(build(dtype), precision)
    before = {name: tensor.clone() for name, tensor in undisturbed.model.state_dict().items()}
    train(undisturbed, 1)
    undisturbed.save_checkpoint(path)
    assert all("lora_" in name for name in read_checkpoint(path, CPU)["model"])
    resumed = trainer_of(build(dtype), precision)
    resumed.load_checkpoint(path)
    for trainer in (undisturbed, resumed):
        train(trainer, 2)
    assert undisturbed.get_stats()["applied_steps"] == 12
    assert all(map(torch.equal, weights(undisturbed.model), weights(resumed.model)))
    changed = [
        not torch.equal(tensor, before[name])
        for name, tensor in undisturbed.model.state_dict().items()
    ]
    adapter = ["lora_" in name for name in before]
    assert changed == adapter


@pytest.mark.parametrize("dtype", BASES)
def test_precision_flips_live(dtype):
    trainer = trainer_of(adapted(dtype), "fp16")
    first, losses = batches(0)[0], []
    for precision in PRECISIONS * 3:
        state = PrecisionState(requested="fp16", effective=precision, reason="override")
        trainer.set_precision(state)
        trainer.train_batch(first, loss)
        losses.append(loss(trainer.forward, first).item())
    assert trainer.get_stats()["applied_steps"] == 9
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("build", [adapted, injected])
@pytest.mark.parametrize("dtype", BASES)
def test_an_adapter_of_another_base_is_refused_by_name(build, dtype, tmp_path):
    path = tmp_path / "checkpoint.pt"
    trainer_of(build(dtype), "fp32").save_checkpoint(path)
    with pytest.raises(CheckpointError, match=r"another frozen base: .*embed_tokens\.weight was"):
        trainer_of(build(dtype, seed=5), "fp32").load_checkpoint(path)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_job_trains_an_adapter_that_is_published_in_the_format_of_peft(
    precision, train_in, tmp_path: Path
):
    model = adapted(torch.bfloat16)
    check_fp32_step(job_of(model), CPU)
    result, _ = train_in(job_of(model), tmp_path / "run", precision)
    assert (result.outcome, result.steps) == ("done", 8)
    published = tmp_path / "published"
    model.save_pretrained(published)
    assert all("lora_" in name for name in load_file(published / "adapter_model.safetensors"))
    assert not list(published.glob("model*"))
    loaded = peft.PeftModel.from_pretrained(base_of(torch.bfloat16), str(published))
    own = model.state_dict()
    assert all(torch.equal(tensor, own[name]) for name, tensor in loaded.state_dict().items())


def run(model: nn.Module, folder: Path, stop_at: int = 0) -> list[BaseEvent]:
    """Train a job, which is asked for commands after each step."""
    events: list[BaseEvent] = []
    calls = iter(range(1, 100))
    loop.train(
        job_of(model),
        device=CPU,
        precision=PrecisionState(requested="fp16", effective="fp16", reason="default"),
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0),
        options=loop.LoopOptions(seed=3, checkpoint_interval_seconds=3600.0),
        folder=folder,
        emit=events.append,
        commands=lambda: [Stop(reason="test")] if next(calls) == stop_at else [],
    )
    return events


def test_a_job_resumes_bit_for_bit_and_with_another_base_it_does_not_begin(tmp_path: Path):
    whole, resumed = adapted(), adapted()
    run(whole, tmp_path / "whole")
    run(adapted(), tmp_path / "parts", stop_at=4)
    message = r"does not fit this job .*another frozen base.*build the model with the base"
    with pytest.raises(CheckpointError, match=message):
        run(adapted(seed=5), tmp_path / "parts")
    events = run(resumed, tmp_path / "parts")
    assert [event for event in events if isinstance(event, Resumed)]
    assert all(map(torch.equal, weights(resumed), weights(whole)))


def test_a_half_adapter_is_refused_by_name_with_the_remedy():
    model = base_of(torch.float16)
    model.add_adapter(peft.LoraConfig(**LORA))
    with pytest.raises(ValueError, match=r"lora_A.* is torch\.float16: keep parameters that are"):
        trainer_of(model, "fp16")
