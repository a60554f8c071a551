"""Gradients, norm and losses of all ranks as if one process had computed them.

Every rank must take the same decision in every step, or their weights diverge for good. So the
norm and the losses go through one all-reduce, and every rank decides from the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from infrastructure.training.distributed.modules import is_distributed
from infrastructure.training.multi_optimizer import members_of


def is_shared_by_ranks(model: Module) -> bool:
    """Whether *model* is in DDP or sharded, so that its gradients need `RankGradients`.

    Raises:
        ValueError: Only a part of the model is distributed, or it is by FSDP1.
    """
    if is_distributed(model):
        return True
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ValueError(
            "FSDP1 hides which parameters a rank holds: shard the model with fully_shard() "
            "(FSDP2), or step it by hand with a ShardedGradScaler; see docs/how-to/distributed.md"
        )
    inner = [name for name, module in model.named_modules() if is_distributed(module)]
    if inner:
        raise ValueError(
            f"{inner[0]!r} is in DDP or sharded but the model around it is not, so the rest "
            "would get different gradients on each rank: wrap the whole model"
        )
    return False


class RankGradients:
    """Combines the gradients and losses of the ranks into one step.

    Args:
        model: Model in DDP, or sharded by `fully_shard`.
        optimizer: Optimizer; its class is tried on a sharded parameter of its own.
        parameters: Parameters the optimizer updates.
        accumulate: Micro-batches per window.
        norm: Global L2 norm of a list of tensors, ``[]``.

    Raises:
        ValueError: The model is not distributed over all ranks, or torch cannot step sharded
            parameters with this optimizer.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        parameters: Sequence[Parameter],
        accumulate: int,
        norm: Callable[[list[Tensor]], Tensor],
    ) -> None:
        self._ddp = model if isinstance(model, DistributedDataParallel) else None
        self._parameters, self._accumulate, self._norm = parameters, accumulate, norm
        if self._ddp is not None:
            self._group = self._ddp.process_group
            self._ranks, self._replicas = dist.get_world_size(self._group), 1
        else:
            trained = [p for p in parameters if p.requires_grad]
            self._group, self._ranks, self._replicas = _mesh(trained)
            for member in members_of(optimizer):
                _require_sharded_step(member, trained[0])
        self.begin_micro_batch(0)

    @property
    def is_rank_zero(self) -> bool:
        """Whether this process is the first of those that share the model."""
        return dist.get_rank(self._group) == 0

    def begin_micro_batch(self, before: int) -> None:
        """Prepare the micro-batch that follows *before* others of its window.

        DDP averages gradients only in the backward pass of a window's last one (like ``no_sync``).
        FSDP2 does so in every one: otherwise it would have to keep whole gradients.
        """
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = before + 1 == self._accumulate

    def end_window(self, micro_batches: int) -> None:
        """Average the gradients that DDP has not, if the window ends early; prepare the next."""
        if self._ddp is not None and micro_batches < self._accumulate:
            self._average_late()
        self.begin_micro_batch(0)

    @torch.no_grad()
    def _average_late(self) -> None:
        trained = [p for p in self._parameters if p.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        grads = [cast("Tensor", parameter.grad) for parameter in trained]
        flat = torch.cat([grad.flatten() for grad in grads])
        dist.all_reduce(flat, group=self._group)
        flat /= self._ranks
        for grad, averaged in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(averaged.view_as(grad))

    @torch.no_grad()
    def reduce(self, grads: list[Tensor], loss: Tensor, count: int) -> tuple[Tensor, ...]:
        """All-reduce norm, loss and number of micro-batches of one step.

        A sum of losses in float64 is finite exactly if each of them is, so it carries the flag
        of any micro-batch on any rank as well as their mean.

        Args:
            grads: Gradients averaged over the ranks; still scaled, summed over micro-batches.
            loss: float32 ``[]``, sum over this rank's micro-batches.
            count: Number of this rank's micro-batches, without replays.

        Returns:
            float32 ``[]`` each: the global norm of *grads*; the mean loss of a micro-batch; the
            mean number of micro-batches per rank, by which *grads* must be divided.
        """
        sums = [loss.double(), loss.new_full((), count, dtype=torch.float64)]
        if self._ddp is None:
            local_norm = self._norm([cast("Any", grad).to_local() for grad in grads])
            sums.append(local_norm.double().square() / self._replicas)
        total = torch.stack(sums)
        dist.all_reduce(total, group=self._group)
        norm = self._norm(grads) if self._ddp is not None else total[2].sqrt().float()
        return norm, (total[0] / total[1]).float(), (total[1] / self._ranks).float()


def _require_sharded_step(optimizer: Optimizer, like: Parameter) -> None:
    """Raise if torch cannot step sharded parameters with this fused optimizer."""
    kind: Any = type(optimizer)
    if not all(group.get("fused") for group in optimizer.param_groups):
        return
    trial = Parameter(torch.zeros_like(like))
    trial.grad = torch.zeros_like(trial)
    try:
        kind([trial], lr=0.0, fused=True).step()
    except NotImplementedError as error:
        raise ValueError(
            f"torch {torch.__version__} cannot step sharded parameters with fused "
            f"{kind.__name__} ({error}): build it without fused=True, or use AdamW"
        ) from error


def _mesh(parameters: Sequence[Parameter]) -> tuple[Any, int, int]:
    """Group, size and replicas per shard of the mesh over which all *parameters* are sharded."""
    meshes = {getattr(parameter, "device_mesh", None) for parameter in parameters}
    if len(meshes) != 1 or None in meshes:
        raise ValueError(
            "some parameters are sharded over another mesh, or not at all: apply fully_shard() "
            "to the root of the model too, without ignored_params, over one mesh"
        )
    mesh: Any = meshes.pop()
    if mesh.ndim > 1 and mesh.size() != dist.get_world_size():
        raise ValueError(
            f"the mesh has {mesh.size()} of {dist.get_world_size()} ranks in {mesh.ndim} "
            "dimensions: give fully_shard() a mesh over all ranks, or one of one dimension"
        )
    placements = cast("Any", parameters[0]).placements
    replicas = math.prod(
        mesh.size(dimension)
        for dimension, placement in enumerate(placements)
        if placement.is_replicate()
    )
    return mesh.get_group() if mesh.ndim == 1 else dist.group.WORLD, mesh.size(), replicas
