"""What each rank does: a program for torchrun, ``ranks FOLDER cuda|cpu``."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from infrastructure.agent_contract import Forward
from infrastructure.agent_contract.training_job import Batch
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.distributed import process_group
from infrastructure.training.distributed.modules import whole_tensor

KINDS = ("ddp", "fsdp2")
TOLERANCES = {"fp32": 1e-4, "bf16": 1e-2, "fp16": 1e-2}
CASES = tuple(f"{kind}-{precision}" for kind, precision in product(KINDS, TOLERANCES))
_STEPS = 12
_RANKS = 2


def main() -> None:
    """Train every case, then one with an overflow on rank 1; write weights and counters."""
    folder, device = Path(sys.argv[1]), torch.device(sys.argv[2])
    torch.set_num_threads(1)
    with process_group(device) as own:
        rank = dist.get_rank()
        weights, overflow = {}, {}
        for name in CASES:
            kind, _, precision = name.partition("-")
            trainer = _trainer(_spread(kind, own), precision)
            for number in range(rank, _RANKS * _STEPS, _RANKS):
                trainer.step(trainer.training_step(_batch(number, own), _loss))
            weights[name] = _weights(trainer).tolist()
        for kind in KINDS:
            trainer = _trainer(_spread(kind, own), "fp16")
            for number in range(rank, 3 * _RANKS, _RANKS):
                explodes = rank == 1 and number == rank + _RANKS
                trainer.step(trainer.training_step(_batch(number, own), _exploding(explodes)))
            overflow[kind] = trainer.get_stats()
    result = json.dumps({"weights": weights, "overflow": overflow})
    (folder / f"rank-{rank}.json").write_text(result)


def train_alone(precision: str, device: torch.device) -> Tensor:
    """Weights, on the CPU, after the same steps in this process alone."""
    trainer = _trainer(_network(device), precision, accumulate=_RANKS)
    for number in range(_RANKS * _STEPS):
        trainer.step(trainer.training_step(_batch(number, device), _loss))
    return _weights(trainer)


def _network(device: torch.device) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1)]
    return nn.Sequential(*layers).to(device)


def _spread(kind: str, device: torch.device) -> nn.Module:
    model = _network(device)
    if kind == "ddp":
        return DistributedDataParallel(model)
    fully_shard(model)
    return model


def _trainer(model: nn.Module, precision: str, *, accumulate: int = 1) -> FP16Trainer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)  # sees a factor, as Adam does not
    config = FP16TrainingConfig(
        precision=Precision(precision), cpu_half=True, loss_scale=1024.0, accumulate=accumulate
    )
    return FP16Trainer(model, optimizer, config)


def _batch(number: int, device: torch.device) -> dict[str, Tensor]:
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(number))
    return {"x": x.to(device), "y": x.sum(1, keepdim=True).to(device)}


def _loss(forward: Forward, batch: Batch) -> Tensor:
    return functional.mse_loss(forward(batch["x"]), batch["y"])


def _exploding(explodes: bool) -> Callable[[Forward, Batch], Tensor]:
    """A loss that is 0 and has gradients beyond FP16's range; or the usual one."""

    def loss(forward: Forward, batch: Batch) -> Tensor:
        value = _loss(forward, batch)
        return (value - value.detach()) * 1e37 if explodes else value

    return loss


def _weights(trainer: FP16Trainer) -> Tensor:
    state = trainer.model.state_dict().values()
    return torch.cat([whole_tensor(each).detach().float().cpu().flatten() for each in state])


if __name__ == "__main__":
    main()
