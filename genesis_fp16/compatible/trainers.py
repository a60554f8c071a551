"""Genesis' trainers: `FP16Trainer` with its attributes, and the *Extended* names of the same."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from genesis_fp16.compatible.deprecation import warn_deprecated
from infrastructure.training import FP16Trainer as Trainer
from infrastructure.training import FP16TrainingConfig, Precision

__all__ = [
    "ExtendedFP16Config",
    "ExtendedFP16Trainer",
    "FP16Trainer",
    "PrecisionMode",
    "cleanup_distributed",
    "init_distributed",
]


class _Scaler:
    """The loss scale, as Genesis' code reads it."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer

    def get_scale(self) -> float:
        """Return the loss scale; reads the device."""
        return self._trainer.scale_in_force.item()


class FP16Trainer(Trainer):
    """`infrastructure.training.FP16Trainer` with the further attributes of Genesis' own."""

    @property
    def fp16_enabled(self) -> bool:
        """Whether FP16 is in force; see ``precision``."""
        return self.precision is Precision.FP16

    @property
    def _fp16_active(self) -> bool:
        return self.fp16_enabled

    @property
    def scaler(self) -> _Scaler | None:
        """Reader of the loss scale; None without one. See ``scale_in_force``."""
        return _Scaler(self) if self.precision.scales_loss else None


class PrecisionMode(Enum):
    """Precision in the words of Genesis; see `Precision`."""

    FP32 = "fp32"
    FP16 = "fp16"
    BF16 = "bfloat16"
    MIXED_FP16 = "mixed_fp16"
    MIXED_BF16 = "mixed_bf16"


_PRECISIONS = {
    PrecisionMode.FP32: Precision.FP32,
    PrecisionMode.FP16: Precision.FP16,
    PrecisionMode.BF16: Precision.BF16,
    PrecisionMode.MIXED_FP16: Precision.FP16,
    PrecisionMode.MIXED_BF16: Precision.BF16,
}
_DTYPES = {Precision.FP16: torch.float16, Precision.BF16: torch.bfloat16}


@dataclass
class ExtendedFP16Config:
    """Configuration in the words of Genesis; see `FP16TrainingConfig`.

    A *max_grad_norm* of 0 does not clip. The last three fields configure DDP.
    """

    precision_mode: PrecisionMode = PrecisionMode.MIXED_FP16
    enabled: bool = True
    loss_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 1.0
    use_ddp: bool = False
    find_unused_parameters: bool = False
    broadcast_buffers: bool = True

    def to_config(self) -> FP16TrainingConfig:
        """Return the same in our words."""
        return FP16TrainingConfig(
            precision=_PRECISIONS[self.precision_mode],
            enabled=self.enabled,
            loss_scale=self.loss_scale,
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            accumulate=self.gradient_accumulation_steps,
            max_grad_norm=self.max_grad_norm or None,
        )


class ExtendedFP16Trainer(FP16Trainer):
    """`infrastructure.training.FP16Trainer` by the arguments of Genesis' *Extended* trainer.

    A half type that the device lacks becomes FP32, never the other half type.

    Args:
        model: Model, which is moved to *device*.
        optimizer: Optimizer over its parameters.
        config: Configuration.
        device: Device; None for the CUDA device of *rank*, or the CPU if there is none.
        rank, world_size: As `init_distributed` returned them.

    Raises:
        RuntimeError: The configuration asks for DDP, and no process group was joined.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        config: ExtendedFP16Config | None = None,
        device: torch.device | None = None,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        warn_deprecated("ExtendedFP16Trainer", "infrastructure.training.FP16Trainer")
        given = config or ExtendedFP16Config()
        if device is None:
            number = rank if world_size > 1 else 0
            device = torch.device("cuda", number) if torch.cuda.is_available() else None
        model = model.to(device or torch.device("cpu"))
        if given.use_ddp and world_size > 1:
            if not dist.is_initialized():
                raise RuntimeError("DDP needs a process group: call init_distributed() first")
            model = DistributedDataParallel(
                model,
                find_unused_parameters=given.find_unused_parameters,
                broadcast_buffers=given.broadcast_buffers,
            )
        super().__init__(model, optimizer, given.to_config())
        self.rank, self.world_size, self._mode = rank, world_size, given.precision_mode

    @property
    def precision_active(self) -> bool:
        """Whether a half type is in force."""
        return self.precision is not Precision.FP32

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Half type in force, or None."""
        return _DTYPES.get(self.precision)

    def backward_and_step(self, loss: Tensor) -> bool:
        """As ``FP16Trainer.backward_and_step``, but False while micro-batches accumulate."""
        return super().backward_and_step(loss) and self.at_step_boundary

    def get_stats(self) -> dict[str, float | int | bool | str]:
        """Statistics of ``FP16Trainer.get_stats``, and Genesis' further keys.

        ``training_steps`` counts optimizer steps, not micro-batches.
        """
        stats = super().get_stats()
        return {
            **stats,
            "update_steps": stats["applied_steps"],
            "accumulated_steps": self._micro_batches,
            "precision_mode": self._mode.value,
            "precision_active": self.precision_active,
            "device": str(self.device),
            "world_size": self.world_size,
            "rank": self.rank,
        }


def init_distributed(backend: str = "nccl") -> tuple[int, int]:
    """Join the process group that ``torchrun`` describes.

    Returns:
        Rank and number of ranks; 0 and 1 without ``torchrun``.
    """
    warn_deprecated("init_distributed", "infrastructure.training.loop.train under torchrun")
    if dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    if not dist.is_torchelastic_launched():
        return 0, 1
    if torch.cuda.is_available():
        torch.cuda.set_device(dist.get_node_local_rank(fallback_rank=0))
    dist.init_process_group(backend)
    return dist.get_rank(), dist.get_world_size()


def cleanup_distributed() -> None:
    """Leave the process group, if one was joined."""
    warn_deprecated("cleanup_distributed", "infrastructure.training.loop.train under torchrun")
    if dist.is_initialized():
        dist.destroy_process_group()
