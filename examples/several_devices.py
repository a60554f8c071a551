"""One training on several ranks, by DDP and by FSDP2.

Start it with ``torchrun --standalone --nproc-per-node=2 examples/several_devices.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from infrastructure.agent_contract import Forward
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from infrastructure.training.distributed import process_group

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def compute_loss(forward: Forward, batch: Tensor) -> Tensor:
    """The error of a predicted sum."""
    return nn.functional.mse_loss(forward(batch), batch.sum(1, keepdim=True))


def shard(model: nn.Sequential) -> nn.Module:
    """Shard the layers that have parameters, then the root."""
    for layer in (model[0], model[2]):
        fully_shard(layer)
    return fully_shard(model)


def train(wrap: Callable[[nn.Sequential], nn.Module], path: str) -> FP16Trainer:
    """Train on every rank; each has the same number of batches."""
    with process_group(device) as own_device:
        network = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1))
        model = wrap(network.to(own_device))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(cpu_half=True))
        for batch in torch.randn(32, 16, 8, device=own_device):
            trainer.step(trainer.training_step(batch, compute_loss))
        trainer.save_checkpoint(path)
        return trainer


if __name__ == "__main__":
    train(DistributedDataParallel, "ddp.pt")
    train(shard, "fsdp2.pt")
