"""The training step on two ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import (
    FullyShardedDataParallel,
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler
from torch.nn.parallel import DistributedDataParallel

from infrastructure.training.distributed.modules import unwrapped
from infrastructure.training.precision import PinnedPrecisionError
from infrastructure.training.precision.compiled_calls import CompiledCalls
from tests.infrastructure.training import modules_with_state
from tests.infrastructure.training.distributed.scenarios.jobs import job, run
from tests.infrastructure.training.distributed.scenarios.registry import scenario
from tests.infrastructure.training.distributed.scenarios.trainers import (
    CPU,
    FP32,
    adamw,
    micro_batch,
    mse,
    network,
    sgd,
    spread,
    steps,
    summary,
    trainer_of,
    weights,
)

KINDS = [
    ("ddp", "fp16", "fused"),
    ("ddp", "bf16", "loop"),
    ("fsdp2", "fp16", "fused"),
    ("fsdp2", "bf16", "fused"),
    ("fsdp2", "fp32", "fused"),
    ("fsdp2", "fp16", "loop"),
]
OPTIMIZERS = {"fused": adamw, "loop": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False)}


def bad_on_rank_1(loss: Callable[[Tensor], Tensor]) -> Callable[..., list[dict[str, Any]]]:
    def run() -> list[dict[str, Any]]:
        results = []
        for kind, precision, optimizer in KINDS:
            trainer = trainer_of(spread(kind), precision, OPTIMIZERS[optimizer])
            steps(trainer, [0, 1])
            before = weights(trainer.model)
            rank = dist.get_rank()
            steps(trainer, [2, 3], lambda f, b, r=rank: loss(mse(f, b)) if r else mse(f, b))
            kept = weights(trainer.model) == before
            steps(trainer, [4, 5])
            moved = weights(trainer.model) != before
            results.append({"case": [kind, precision], **summary(trainer)})
            results[-1].update(kept=kept, moved=moved)
        return results

    return run


@scenario
def overflow_on_one_rank(_folder: Path) -> Any:
    return bad_on_rank_1(lambda value: (value - value.detach()) * 1e37)()


@scenario
def nan_loss_on_one_rank(_folder: Path) -> Any:
    """The gradients of a loss plus a constant NaN are finite: only the flag can tell."""
    return bad_on_rank_1(lambda value: value + math.nan)()


@scenario
def buffers(_folder: Path) -> Any:
    """Modules with state beside the same ones that never see the batches of skipped steps."""
    results = []
    for kind, precision, name in product(
        ("ddp", "fsdp2"), ("fp16", "bf16", "fp32"), ("batch norm", "codebook", "queue", "act norm")
    ):
        trainers = [
            trainer_of(
                spread(kind, model=modules_with_state.network(name)),
                precision,
                min_loss_scale=256.0,
            )
            for _ in range(2)
        ]
        given, is_bad = modules_with_state.batches(12, 4, precision)
        for batch, bad in zip(given, is_bad, strict=True):
            if dist.get_rank() == 0:  # the others see the bad row
                batch["x"] = batch["x"].nan_to_num(0).clamp(-3, 3)
            trainers[0].train_batch(batch, mse)
            if not bad:
                trainers[1].train_batch(batch, mse)
        applied = trainers[0].get_stats()["applied_steps"]
        same = weights(trainers[0].model) == weights(trainers[1].model)
        results.append({"case": [kind, precision, name], "applied": applied, "same": same})
    return results


@scenario
def compiled(_folder: Path) -> Any:
    """Steps of a compiled model beside eager ones."""
    from torch._dynamo.testing import CompileCounterWithBackend  # late: it takes a second

    def by_method(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        return nn.functional.mse_loss(forward.method("forward", batch["x"]), batch["y"])

    results = []
    for kind, loss in product(("ddp", "fsdp2"), (mse, by_method)):
        counter = CompileCounterWithBackend("aot_eager")
        calls, outcomes = CompiledCalls(backend=counter), []
        for each in (None, calls):
            trainer = trainer_of(spread(kind), compiled=each, accumulate=2)
            steps(trainer, list(range(16)), loss)
            outcomes.append(summary(trainer))
        same = outcomes[0] == outcomes[1]
        results.append({"case": [kind, loss.__name__], "same": same})
        results[-1].update(compiled=counter.frame_count, refused=calls.refused_reason)
    return results


@scenario
def nan_on_one_shard(_folder: Path) -> Any:
    trainer = trainer_of(spread("fsdp2"), accumulate=2)
    before = weights(trainer.model)
    steps(trainer, [0, 1])
    grad: Any = next(trainer.model.parameters()).grad
    if dist.get_rank() == 1:
        grad.to_local().fill_(math.nan)
    steps(trainer, [2, 3])
    return {**summary(trainer), "kept": weights(trainer.model) == before}


@scenario
def accumulation(_folder: Path) -> Any:
    """Three micro-batches a rank and window; the last window has two."""
    results = {}
    for kind in ("ddp", "fsdp2"):
        for precision in ("fp32", "fp16"):
            model = spread(kind)
            reductions = []
            if isinstance(model, DistributedDataParallel):

                def count(_state, bucket, seen=reductions):  # DDP reads the annotations
                    seen.append(1)
                    return allreduce_hook(dist.group.WORLD, bucket)

                model.register_comm_hook(None, count)
            trainer = trainer_of(model, precision, sgd, accumulate=3, max_grad_norm=None)
            steps(trainer, list(range(16)))
            trainer.finish_window()
            steps(trainer, list(range(16, 22)))
            results[f"{kind}-{precision}"] = {**summary(trainer), "reductions": len(reductions)}
    return results


@scenario
def methods(_folder: Path) -> Any:
    def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        code = forward.method("encode", batch["x"])
        return (
            mse(forward, batch)
            + code.square().mean()
            + forward.method("head", code.detach()).square().mean()  # of a submodule
        )

    results = {}
    for kind, precision in product(("ddp", "fsdp2"), ("fp32", "fp16")):
        trainer = trainer_of(spread(kind), precision)
        steps(trainer, [0, 1, 2, 3], loss)
        results[f"{kind}-{precision}"] = summary(trainer)
    return results


@scenario
def keep_fp32(folder: Path) -> Any:
    results: dict[str, Any] = {}
    for kind in ("ddp", "fsdp2"):
        model, dtypes = spread(kind), {}
        for name, module in unwrapped(model).named_modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(
                    lambda *a, name=name, dtypes=dtypes: dtypes.update({name: str(a[-1].dtype)})
                )
        trainer = trainer_of(model, keep_fp32=["blocks.1"])
        steps(trainer, [0, 1, 2, 3])
        results[kind] = {**summary(trainer), "dtypes": dtypes}
        live = trainer_of(spread(kind))
        live.set_precision(replace(live.precision_state, modules=("blocks.1",)))
        steps(live, [0, 1, 2, 3])
        results[kind]["live"] = summary(live)["weights"]
    try:
        run(replace(job(), keep_fp32=["head"]), folder / "kept", parallel="fsdp2-policy")
    except ValueError as refusal:
        results["refusal"] = str(refusal)
    return results


@scenario
def policy(_folder: Path) -> Any:
    held = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    trainer = trainer_of(spread("fsdp2", held))
    steps(trainer, [0, 1, 2, 3])
    refusals = []
    for attempt in (
        lambda: trainer.set_precision(FP32),
        lambda: trainer_of(spread("fsdp2", held), "bf16"),
        trainer.cast_model_to_fp16,
        lambda: trainer_of(spread("fsdp2"), optimizer=partial(sgd, fused=True)),
    ):
        try:
            attempt()
        except (PinnedPrecisionError, RuntimeError, ValueError) as error:
            refusals.append(f"{type(error).__name__}: {error}")
    half_way = network()
    fully_shard(half_way.head)
    try:
        trainer_of(half_way)
    except ValueError as error:
        refusals.append(str(error))
    return {**summary(trainer), "refusals": refusals}


@scenario
def hybrid(_folder: Path) -> Any:
    """Replicas of shards: here two replicas of one shard each."""
    mesh = dist.device_mesh.init_device_mesh(
        "cpu", (dist.get_world_size(), 1), mesh_dim_names=("replica", "shard")
    )
    trainer = trainer_of(fully_shard(network(), mesh=mesh), "fp32", sgd)
    steps(trainer, [0, 1, 2, 3])
    return summary(trainer)


@scenario
def fsdp1_by_hand(_folder: Path) -> Any:
    """The lines of docs/how-to/distributed.md; rank 1 overflows in the second step."""
    model = FullyShardedDataParallel(network(), device_id=CPU)
    try:
        trainer_of(model)
    except ValueError as error:
        refusal = str(error)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = ShardedGradScaler("cpu", init_scale=256.0, growth_interval=400)
    scales, kept = [], []
    for step in range(3):
        batch = micro_batch(2 * step + dist.get_rank())
        before = [parameter.detach().clone() for parameter in model.parameters()]
        with torch.autocast("cpu", dtype=torch.float16):
            output = model(batch["x"])
        loss = nn.functional.mse_loss(output.float(), batch["y"])
        if step == 1 and dist.get_rank() == 1:
            loss = (loss - loss.detach()) * 1e37
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        model.clip_grad_norm_(1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scales.append(scaler.get_scale())
        kept.append(all(map(torch.equal, before, model.parameters())))
    return {"refusal": refusal, "scales": scales, "kept": kept}
