"""A small network and its trainer, the same on any number of ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import (
    MixedPrecisionPolicy,
    fully_shard,
)
from torch.nn.parallel import DistributedDataParallel

from infrastructure.events import PrecisionState
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.distributed.modules import whole_tensor
from infrastructure.training.precision.compiled_calls import CompiledCalls

CPU = torch.device("cpu")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")


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
    model: nn.Module,
    precision: str = "fp16",
    optimizer: Any = adamw,
    *,
    compiled: CompiledCalls | None = None,
    **config: Any,
) -> FP16Trainer:
    return FP16Trainer(
        model,
        optimizer(model.parameters()),
        FP16TrainingConfig(
            precision=Precision(precision), cpu_half=True, loss_scale=256.0, **config
        ),
        compiled=compiled,
    )


def spread(
    kind: str, policy: MixedPrecisionPolicy | None = None, model: nn.Module | None = None
) -> nn.Module:
    model = model or network()
    if kind == "ddp":
        return DistributedDataParallel(model)
    for block in getattr(model, "blocks", ()):
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
