"""What goes wrong on two ranks in loops written by hand and not in `FP16Trainer`.

Run as a script, ``test_naive_ranks.py FOLDER RANK``, it is one of the two ranks.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from infrastructure.training import FP16Trainer, FP16TrainingConfig
from tests.preloaded import RUN_FILE, ForkedPopen

pytestmark = pytest.mark.process

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two ranks saw."""
    folder = tmp_path_factory.mktemp("ranks")
    root = Path(__file__).parents[4]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    processes = [
        ForkedPopen(
            [sys.executable, "-P", "-c", RUN_FILE, __file__, str(folder), str(rank)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    ]
    try:
        outputs = [process.communicate(timeout=300)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def test_an_overflow_in_one_shard_parts_the_ranks_of_a_sharded_scaler(ranks) -> None:
    naive = [rank["shard"]["naive"] for rank in ranks]
    assert [result["kept"] for result in naive] == [True, False]
    assert [result["scale"] for result in naive] == [4.0, 8.0]
    for rank in ranks:
        assert rank["shard"]["ours"] == {"kept": True, "scale": 4.0}
    assert "shape" in ranks[0]["shard"]["unscaled"]  # nor can its gradients be clipped


def test_a_nan_loss_on_one_rank_parts_the_scales_of_a_hand_written_guard(ranks) -> None:
    assert [rank["nan"]["naive"] for rank in ranks] == [4.0, 8.0]
    for rank in ranks:
        assert rank["nan"]["ours"] == {"kept": True, "scale": 8.0, "nonfinite_loss_steps": 1}


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(8, 2, bias=False)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def local(model: nn.Module) -> Tensor:
    (parameter,) = model.parameters()
    return getattr(parameter, "_local_tensor", parameter).detach().clone()


def half_loss(model: nn.Module) -> Tensor:
    with torch.autocast("cpu", dtype=torch.float16):
        output: Tensor = model(torch.ones(4, 8))
    return output.float().mean()


def overflow_in_the_shard_of_rank_0(rank: int) -> dict[str, Any]:
    from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    def backward() -> tuple[nn.Module, torch.optim.Optimizer, ShardedGradScaler]:
        model = FullyShardedDataParallel(linear(), device_id=CPU, use_orig_params=False)
        scaler = ShardedGradScaler("cpu", init_scale=8.0)
        scaler.scale(half_loss(model)).backward()
        (parameter,) = model.parameters()
        if rank == 0:
            parameter.grad.fill_(math.inf)
        return model, adamw(model), scaler

    model, optimizer, scaler = backward()
    before = local(model)
    scaler.step(optimizer)
    scaler.update()
    naive = {"kept": torch.equal(local(model), before), "scale": scaler.get_scale()}

    model, optimizer, scaler = backward()
    unscaled = ""
    try:
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    except RuntimeError as error:
        unscaled = str(error)

    sharded = fully_shard(linear())
    config = FP16TrainingConfig(cpu_half=True, loss_scale=8.0, accumulate=2)
    trainer = FP16Trainer(sharded, adamw(sharded), config)
    batch = {"x": torch.ones(4, 8)}
    before = local(sharded)
    trainer.step(trainer.training_step(batch, lambda f, b: f(b["x"]).mean()))
    if rank == 0:
        sharded.weight.grad.to_local().fill_(math.inf)
    trainer.step(trainer.training_step(batch, lambda f, b: f(b["x"]).mean()))
    kept, scale = torch.equal(local(sharded), before), trainer.get_stats()["current_scale"]
    return {"naive": naive, "unscaled": unscaled, "ours": {"kept": kept, "scale": scale}}


def nan_loss_on_rank_1(rank: int) -> dict[str, Any]:
    from torch.nn.parallel import DistributedDataParallel

    bad = math.nan if rank == 1 else 1.0
    model = DistributedDataParallel(linear())
    optimizer, scaler = adamw(model), torch.amp.GradScaler("cpu", init_scale=8.0)
    loss = half_loss(model) * bad
    scaler.scale(loss).backward()
    if loss.isfinite():
        scaler.step(optimizer)
        scaler.update()

    model = DistributedDataParallel(linear())
    trainer = FP16Trainer(model, adamw(model), FP16TrainingConfig(cpu_half=True, loss_scale=8.0))
    before = local(model)
    loss = trainer.training_step(torch.ones(4, 8), lambda forward, x: forward(x).mean() * bad)
    trainer.step(loss)
    stats = trainer.get_stats()
    ours = {
        "kept": torch.equal(local(model), before),
        "scale": stats["current_scale"],
        "nonfinite_loss_steps": stats["nonfinite_loss_steps"],
    }
    return {"naive": scaler.get_scale(), "ours": ours}


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2
    )
    result = {"nan": nan_loss_on_rank_1(rank), "shard": overflow_in_the_shard_of_rank_0(rank)}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    for _ in range(2000):
        if (folder / f"{1 - rank}.json").exists():  # until then it may need this rank
            break
        time.sleep(0.01)
    os._exit(0)  # gloo's threads sometimes abort a process that ends in order, its work done


if __name__ == "__main__":
    main()
