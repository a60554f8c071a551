"""One model on several devices: joining the process group, and spreading the model over it.

DDP keeps the whole model on every rank and averages gradients: Li et al. 2020, "PyTorch
Distributed". FSDP2 keeps a shard of parameters, gradients and optimizer state on each rank:
Rajbhandari et al. 2020, "ZeRO"; Zhao et al. 2023, "PyTorch FSDP".
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Module, ModuleList
from torch.nn.parallel import DistributedDataParallel

from infrastructure.training.distributed.ranks import Ranks, control_group
from infrastructure.training.precision.precision import Precision

Parallel = Literal["ddp", "fsdp2", "fsdp2-policy"]


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the group that ``torchrun`` describes, gloo on a CPU, NCCL on CUDA; yield the device.

    Leaves the group at the end, but not after an error: the others may be gone, and a farewell
    would wait for them.

    Args:
        device: Its type decides; of several CUDA devices each rank takes that of its local rank.
    """
    if device.type == "cuda":
        device = torch.device("cuda", dist.get_node_local_rank())
        torch.cuda.set_device(device)
        dist.init_process_group("nccl", device_id=device)
    else:
        dist.init_process_group("gloo")
    yield device
    control_group.cache_clear()
    dist.destroy_process_group()
    # Whatever still holds a group keeps its threads alive, and one of five processes then aborted
    # while the interpreter ended ("terminate called without an active exception"; torch 2.13).
    gc.collect()


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadModel:
    """Attributes:
    model: What is trained: the job's model, DDP around it, or a sharded copy.
    plain: The job's model, for its author's own code.
    """

    model: Module
    plain: Module

    @torch.no_grad()
    def collect(self, ranks: Ranks, device: torch.device) -> None:
        """Bring the leader's plain model up to date, on *device*; every rank must call it."""
        if not is_sharded(self.model):
            return
        if ranks.leads:
            self.plain.to(device)
        plain = self.plain.state_dict()
        for name, value in self.model.state_dict().items():
            whole = whole_tensor(value)
            if ranks.leads and isinstance(whole, Tensor):
                plain[name].copy_(whole)


def spread(
    model: Module, ranks: Ranks, device: torch.device, parallel: Parallel, precision: Precision
) -> SpreadModel:
    """Put *model* on *device* and, with several ranks, spread it over them, equal everywhere.

    Args:
        model: All parameters float32.
        ranks: Alone, nothing is spread.
        device: Of this rank.
        parallel: ``ddp``; ``fsdp2``, whose precision is autocast's and can change at any step; or
            ``fsdp2-policy``, which gathers half parameters by a `MixedPrecisionPolicy`: half the
            traffic, but the precision holds until a restart.
        precision: What the policy is made for.

    Raises:
        ValueError: *model* is spread already.
    """
    if is_spread(model):
        raise ValueError(
            "the job's model is in DDP or sharded already: hand over the plain model, which the "
            "loop spreads as its option parallel says"
        )
    if ranks.count == 1:
        return SpreadModel(model=model.to(device), plain=model)
    if parallel == "ddp":
        return SpreadModel(model=DistributedDataParallel(model.to(device)), plain=model)
    model.cpu()
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor):
            dist.broadcast(tensor, src=0, group=ranks.control)
    sharded = copy.deepcopy(model)
    _shard(sharded, device, precision.compute if parallel == "fsdp2-policy" else torch.float32)
    return SpreadModel(model=sharded, plain=model)


def _shard(model: Module, device: torch.device, compute: torch.dtype) -> None:
    """Shard each block of each module list, then the rest, over all ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    policy = MixedPrecisionPolicy()
    if compute != torch.float32:
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
    for container in reversed(list(model.modules())):  # innermost first
        for block in container if isinstance(container, ModuleList) else ():
            fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to(device)  # buffers


def is_sharded(module: Module) -> bool:
    """Whether `fully_shard` was applied; asked of the duck, so that nobody else imports FSDP."""
    return hasattr(module, "set_requires_gradient_sync")


def is_spread(module: Module) -> bool:
    """Whether calls of *module* have to pass through DDP's or FSDP2's hooks."""
    return isinstance(module, DistributedDataParallel) or is_sharded(module)


def unwrapped(module: Module) -> Module:
    """The module inside DDP and `torch.compile`, whose names are those of a plain one."""
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return cast("Module", getattr(inner, "_orig_mod", inner))


def whole_tensor(value: Any) -> Any:
    """All of a sharded tensor, gathered from every rank; anything else as it is."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def pinned_precision(model: Module) -> Precision | None:
    """The half precision that a `MixedPrecisionPolicy` of *model* holds it to, if one does.

    The policy has neither setter nor getter, so FSDP2's own state is asked.

    Raises:
        ValueError: Modules of *model* are held to different ones.
    """
    dtypes = {
        cast("Any", module)._get_fsdp_state()._mp_policy.param_dtype
        for module in model.modules()
        if is_sharded(module)
    } - {None, torch.float32}
    pinned = [precision for precision in Precision if precision.compute in dtypes]
    if len(dtypes) > 1 or len(pinned) < len(dtypes):
        raise ValueError(
            f"the model's MixedPrecisionPolicies have several param_dtypes ({dtypes}): use one, "
            "float16 or bfloat16, in every fully_shard()"
        )
    return pinned[0] if pinned else None


def method_of(module: Module, name: str) -> Callable[..., Any]:
    """The method *name* of a spread module, called inside the hooks around its ``forward``."""
    if isinstance(module, DistributedDataParallel):
        return partial(_call_inside_ddp, module, name)
    if name not in vars(module):
        from torch.distributed.fsdp import register_fsdp_forward_method

        register_fsdp_forward_method(module, name)
    method: Callable[..., Any] = getattr(module, name)
    return method


def _call_inside_ddp(
    ddp: DistributedDataParallel, name: str, *args: object, **kwargs: object
) -> object:
    """DDP prepares its reduction only in its own ``forward``, so *name* takes its place in it."""
    module: Any = ddp.module

    def in_place_of_forward(*args: object, **kwargs: object) -> object:
        del module.forward
        return getattr(module, name)(*args, **kwargs)

    module.forward = in_place_of_forward
    try:
        return ddp(*args, **kwargs)
    finally:
        vars(module).pop("forward", None)
