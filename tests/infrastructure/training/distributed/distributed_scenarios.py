"""What each of two ranks does in `test_distributed.py`: a torchrun script, not a test.

``distributed_scenarios.py FOLDER NAME...`` runs the named scenarios one after the other, since a
process pays seconds for its imports, and writes what each returns to ``FOLDER/NAME-RANK.json``.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
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

from infrastructure.agent_contract import Evaluation, TrainingJob
from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.checkpoints.sharded import shard_folders
from infrastructure.training.distributed import process_group, ranks
from infrastructure.training.distributed.modules import unwrapped, whole_tensor
from infrastructure.training.loop import LoopOptions, statistics, train
from infrastructure.training.precision import PinnedPrecisionError

CPU = torch.device("cpu")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")
SCENARIOS: dict[str, Callable[[Path], Any]] = {}


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    SCENARIOS[function.__name__] = function
    return function


class Network(nn.Module):
    """Its last bias has one element, so that one of two ranks holds an empty shard."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(4, 16), nn.Linear(16, 16)])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(16, 1)

    def encode(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = nn.functional.silu(block(x))
        return self.dropout(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encode(x))


def network(dropout: float = 0.0) -> Network:
    torch.manual_seed(0)
    return Network(dropout)


def micro_batch(number: int) -> dict[str, Tensor]:
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
    return {"x": x, "y": x.sum(1, keepdim=True)}


def mse(forward: Any, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, fused=True)


def sgd(parameters: Any, *, fused: bool = False) -> torch.optim.Optimizer:
    """Sees a gradient that is wrong by a factor, which AdamW does not."""
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, fused=fused)


def trainer_of(
    model: nn.Module, precision: str = "fp16", optimizer: Any = adamw, **config: Any
) -> FP16Trainer:
    return FP16Trainer(
        model,
        optimizer(model.parameters()),
        FP16TrainingConfig(
            precision=Precision(precision), cpu_half=True, loss_scale=256.0, **config
        ),
    )


def spread(kind: str, policy: MixedPrecisionPolicy | None = None) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(network())
    model = network()
    for block in model.blocks:
        fully_shard(block, mp_policy=policy or MixedPrecisionPolicy())
    return fully_shard(model, mp_policy=policy or MixedPrecisionPolicy())


def weights(model: nn.Module) -> list[float]:
    if isinstance(model, DistributedDataParallel):
        model = model.module
    whole = [whole_tensor(value).flatten() for value in model.state_dict().values()]
    return torch.cat(whole).tolist()


def summary(trainer: FP16Trainer) -> dict[str, Any]:
    return {**trainer.get_stats(), "weights": weights(trainer.model)}


def steps(trainer: FP16Trainer, numbers: list[int], loss: Any = mse) -> None:
    """This rank's share of the micro-batches *numbers*."""
    for number in numbers[dist.get_rank() :: dist.get_world_size()]:
        trainer.step(trainer.training_step(micro_batch(number), loss))


# -- the step ------------------------------------------------------------------------------------

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
        return mse(forward, batch) + code.square().mean()

    results = {}
    for kind in ("ddp", "fsdp2"):
        trainer = trainer_of(spread(kind), "fp32")
        steps(trainer, [0, 1, 2, 3], loss)
        results[kind] = summary(trainer)
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
def one_to_two(folder: Path) -> Any:
    trainer = trainer_of(spread("fsdp2"))
    trainer.load_checkpoint(folder / "of-one.pt")
    loaded = summary(trainer)
    steps(trainer, [5, 5])
    return {"loaded": loaded, "after": summary(trainer)}


@scenario
def two_to_one(folder: Path) -> Any:
    trainer = trainer_of(spread("fsdp2"))
    steps(trainer, [0, 1, 2, 3])
    trainer.save_checkpoint(folder / "of-two.pt")
    saved = summary(trainer)
    again = trainer_of(spread("fsdp2"))
    again.load_checkpoint(folder / "of-two.pt")
    steps(trainer, [5, 5])
    steps(again, [5, 5])
    return {"saved": saved, "after": summary(trainer), "again": summary(again)}


@scenario
def fsdp1_by_hand(_folder: Path) -> Any:
    """The lines of docs/distributed.md; rank 1 overflows in the second step."""
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


@scenario
def full_disk(folder: Path) -> Any:
    (folder / "a-file").touch()
    refusals = {}
    for kind in ("ddp", "fsdp2"):
        try:
            trainer_of(spread(kind)).save_checkpoint(folder / "a-file" / "x.pt")
        except CheckpointError as error:
            refusals[kind] = str(error)
    return refusals


# -- the loop ------------------------------------------------------------------------------------


def job(
    *,
    batches: int = 8,
    epochs: int = 2,
    dropout: float = 0.0,
    loss: Any = mse,
    optimizer: Any = adamw,
    pause: float = 0.0,
) -> TrainingJob:
    def epoch(number: int) -> list[dict[str, Tensor]]:
        return [micro_batch(1000 * number + i) for i in range(batches)]

    def paused_loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        time.sleep(pause)
        return loss(forward, batch)

    def evaluate(forward: Any) -> Evaluation:
        error = mse(forward, micro_batch(-1)).item()
        return Evaluation(metrics={"mse": error}, primary="mse", higher_is_better=False)

    return TrainingJob(
        model=network(dropout),
        optimizer=optimizer,
        batches=epoch,
        loss=paused_loss,
        evaluate=evaluate,
        epochs=epochs,
        scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.99),
    )


def run(
    job: TrainingJob,
    folder: Path,
    commands: Callable[[], list[Any]] = list,
    *,
    precision: str = "fp16",
    parallel: Any = "ddp",
    config: dict[str, Any] | None = None,
    wish: PrecisionState | None = None,
    **options: Any,
) -> dict[str, Any]:
    events: list[Any] = []
    wish = wish or PrecisionState(requested=precision, effective=precision, reason="default")
    result = train(
        job,
        device=CPU,
        precision=wish,
        config=FP16TrainingConfig(cpu_half=True, loss_scale=256.0, **(config or {})),
        options=LoopOptions(
            **{"seed": 3, "checkpoint_interval_seconds": 3600.0, "parallel": parallel, **options}
        ),
        folder=folder,
        emit=events.append,
        commands=commands,
    )
    return {
        "outcome": result.outcome,
        "steps": result.steps,
        "mse": result.evaluation.value if result.evaluation else None,
        "weights": weights(job.model),
        "next_random": torch.rand(()).item(),
        "events": [event.model_dump(mode="json") for event in events],
    }


def once(*commands: Any) -> Callable[[], list[Any]]:
    """All of the commands when first asked."""
    left = [*commands]

    def give() -> list[Any]:
        given = left[:]
        left.clear()
        return given

    return give


@scenario
def unequal_last_batches(folder: Path) -> Any:
    return {
        f"{parallel}-{precision}": run(
            job(batches=5, optimizer=sgd),
            folder / f"{parallel}-{precision}",
            precision=precision,
            parallel=parallel,
        )
        for parallel, precision in (("ddp", "fp32"), ("ddp", "fp16"), ("fsdp2", "fp32"))
    }


@scenario
def flip(folder: Path) -> Any:
    results = {}
    for parallel in ("ddp", "fsdp2"):
        dtypes: list[str] = []

        def loss(forward: Any, batch: Any, seen: list[str] = dtypes) -> Tensor:
            with torch.enable_grad():
                value = mse(forward, batch)
            seen.append(str(forward._on.fast_dtype) if forward._enabled else "float32")
            return value

        results[parallel] = run(
            job(batches=24, loss=loss),
            folder / f"flip-{parallel}",
            once(SetPrecision(state=FP32)),
            parallel=parallel,
        )
        results[parallel]["dtypes"] = dtypes[:24]
    return results


@scenario
def auto(folder: Path) -> Any:
    """Settled at set-up under DDP, and in mid-run under FSDP2, when the model is in shards."""
    results = {}
    wish = PrecisionState(requested="auto", effective="auto", reason="default")
    for parallel, begin in (("ddp", wish), ("fsdp2", replace(wish, effective="fp32"))):
        calls: list[str] = []

        def loss(forward: Any, batch: Any, seen: list[str] = calls) -> Tensor:
            seen.append("fp32" if not forward._enabled else str(forward._on.fast_dtype))
            return mse(forward, batch)

        results[parallel] = run(
            job(loss=loss),
            folder / f"auto-{parallel}",
            once(SetPrecision(state=wish)),
            parallel=parallel,
            wish=begin,
        )
        results[parallel]["calls"] = len(calls)
        results[parallel]["last_dtype"] = calls[-2]  # the last is the baseline's, on rank 0
    return results


@scenario
def whole_ddp(folder: Path) -> Any:
    return run(job(dropout=0.2, epochs=3), folder / "whole-ddp")


@scenario
def resume_fsdp2(folder: Path) -> Any:
    return {
        "whole": run(job(dropout=0.2), folder / "whole-fsdp2", parallel="fsdp2"),
        "stopped": run(
            job(dropout=0.2), folder / "fsdp2", once(Stop(reason="test")), parallel="fsdp2"
        ),
        "resumed": run(job(dropout=0.2), folder / "fsdp2", parallel="fsdp2"),
    }


@scenario
def stop_for_one(folder: Path) -> Any:
    """Leaves a sharded checkpoint that one process goes on from."""
    return run(job(), folder / "stop-for-one", once(Stop(reason="test")), parallel="fsdp2")


@scenario
def go_on_from_one(folder: Path) -> Any:
    return run(job(), folder / "go-on-from-one", parallel="fsdp2")


@scenario
def corrupt_shard(folder: Path) -> Any:
    folder = folder / "corrupt"
    saved = run(job(batches=40), folder, once(), parallel="fsdp2", checkpoint_interval_seconds=0.0)
    if dist.get_rank() == 0:
        shards = shard_folders(max(folder.glob("step-*.pt")))[-1] / "rank-1.pt"
        data = bytearray(shards.read_bytes())
        data[len(data) // 2] ^= 0xFF
        shards.write_bytes(data)
    dist.barrier()
    return {"saved": saved, "resumed": run(job(batches=40), folder, parallel="fsdp2")}


@scenario
def different_jobs(folder: Path) -> Any:
    refusals = []
    for attempt in (
        lambda: run(job(batches=5 + dist.get_rank()), folder / "different"),
        lambda: run(replace(job(), model=spread("ddp")), folder / "different"),
    ):
        try:
            attempt()
        except ValueError as error:
            refusals.append(str(error))
    return refusals


@scenario
def policy_needs_restart(folder: Path) -> Any:
    folder = folder / "policy"
    flip = once(SetPrecision(state=FP32))
    return {
        "stopped": run(job(), folder, flip, parallel="fsdp2-policy"),
        "resumed": run(job(), folder, parallel="fsdp2-policy", wish=FP32),
    }


@scenario
def go_back_together(folder: Path) -> Any:
    statistics._SHORTEST_WINDOW_SECONDS = 0.0
    ranks._SYNC_SECONDS = 0.0  # the ranks meet after every step, however fast the machine
    calls = iter(range(1000))

    def loss(forward: Any, batch: Any) -> Tensor:
        value = mse(forward, batch)
        bad = 20 <= next(calls) < 45 and dist.get_rank() == 1
        return value + math.nan if bad else value

    return run(
        job(batches=400, epochs=1, loss=loss),
        folder / "back",
        config={"nonfinite_loss_patience": 20},
        stats_interval_steps=1,
        checkpoint_interval_seconds=0.0,
    )


def language_job(overflow_at: int = -1) -> tuple[Any, list[int]]:
    """A policy of two batches a round for four rounds, and the rounds it has generated here.

    Args:
        overflow_at: Call of the loss on rank 1 whose gradient is too large for FP16.
    """
    from tests.infrastructure.policy.mismatch.policy_job import PAD, TokenBatch, a_job, sampled

    rounds: list[int] = []
    calls, asked = iter(range(1000)), iter(range(1000))
    plain = a_job()

    def batches(round_: int, roles: Any) -> list[dict[str, Tensor]]:
        if next(asked) == 0:  # with the untrained model, before the training
            first = TokenBatch.from_sequences([[5, 6]], [[7, 8]], pad_token=PAD)
            return [first.to_tensors()] * 2
        rounds.append(round_)
        return [
            sampled(roles.rollout, 2 * round_ + part, rows=4, tokens=6).to_tensors()
            for part in range(2)
        ]

    def loss(forward: Any, batch: dict[str, Tensor]) -> Tensor:
        value = plain.loss(forward, batch)
        if next(calls) == overflow_at and dist.get_rank() == 1:
            return (value - value.detach()) * 1e37
        return value

    return a_job(2, rounds_per_epoch=2, batches=batches, loss=loss, reference=True), rounds


def after(calls: int, command: Any) -> Callable[[], list[Any]]:
    """The command when asked for the time after *calls* others."""
    asked = iter(range(1000))
    return lambda: [command] if next(asked) == calls else []


@scenario
def policy_flip(folder: Path) -> Any:
    return {
        parallel: run(
            language_job(overflow_at=1)[0],
            folder / f"policy-{parallel}",
            after(5, SetPrecision(state=FP32)),
            parallel=parallel,
        )
        for parallel in ("ddp", "fsdp2")
    }


@scenario
def policy_stop_for_one(folder: Path) -> Any:
    return run(language_job()[0], folder / "policy-two", after(3, Stop(reason="test")))


@scenario
def policy_go_on_from_one(folder: Path) -> Any:
    job, rounds = language_job()
    return {**run(job, folder / "policy-one", parallel="fsdp2"), "rounds": rounds}


@scenario
def slow_ddp(folder: Path) -> Any:
    """To be killed."""
    (folder / f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
    return run(
        job(dropout=0.2, epochs=3, pause=float((folder / "pause").read_text())),
        folder / "slow-ddp",
        checkpoint_interval_seconds=0.0,
    )


def main() -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    with process_group(CPU):
        for name in names:
            result = SCENARIOS[name](folder)
            (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
