"""One model on several devices: join the process group, and distribute the model over it.

DDP keeps the whole model on every rank and averages gradients: Li et al. 2020, "PyTorch
Distributed". FSDP2 keeps a shard of parameters, gradients and optimizer state on each rank:
Rajbhandari et al. 2020, "ZeRO"; Zhao et al. 2023, "PyTorch FSDP".
"""

from __future__ import annotations

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

from infrastructure.torch_internals.fsdp import policy_dtype_of
from infrastructure.torch_internals.modules import COMPILED
from infrastructure.training.distributed.ranks import Ranks, control_group
from infrastructure.training.model_copy import copy_model

Parallel = Literal["ddp", "fsdp2", "fsdp2-policy"]


@contextmanager
def process_group(device: torch.device) -> Iterator[torch.device]:
    """Join the group that ``torchrun`` describes, gloo on a CPU, NCCL on CUDA; yield the device.

    Leaves the group at the end, but not after an error: leaving would wait for the other ranks,
    which may be gone.

    Args:
        device: Device whose type decides; each rank takes the CUDA device of its local rank.
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
    # An object that still holds a group keeps its threads alive; without this, one of five
    # processes aborted while the interpreter ended ("terminate called without an active
    # exception"; torch 2.13).
    gc.collect()


@dataclass(frozen=True, kw_only=True, slots=True)
class DistributedModel:
    """A model that several ranks train.

    Attributes:
        model: Model to train: the job's model, DDP around it, or a sharded copy.
        plain: The job's model, for code of the job's author.
    """

    model: Module
    plain: Module

    @torch.no_grad()
    def update_plain(self, ranks: Ranks, device: torch.device) -> None:
        """Copy the trained weights into rank 0's plain model; every rank must call it."""
        if not is_sharded(self.model):
            return
        if ranks.is_rank_zero:
            self.plain.to(device)
        plain = self.plain.state_dict()
        for name, value in self.model.state_dict().items():
            whole = whole_tensor(value)
            if ranks.is_rank_zero and isinstance(whole, Tensor):
                plain[name].copy_(whole)


def distribute(
    model: Module, ranks: Ranks, device: torch.device, parallel: Parallel, compute: torch.dtype
) -> DistributedModel:
    """Move *model* to *device* and, with several ranks, distribute it: rank 0's weights on all.

    Args:
        ranks: The ranks; one process keeps the model as it is.
        parallel: ``ddp``; ``fsdp2``, whose precision is autocast's and can change at any step; or
            ``fsdp2-policy``, which gathers half parameters by a `MixedPrecisionPolicy`: half the
            traffic, but the precision stays until a restart.
        compute: dtype for the policy; float32 for none.

    Raises:
        ValueError: *model* is already distributed.
    """
    if is_distributed(model):
        raise ValueError(
            "the job's model is already in DDP or sharded: pass the plain model, which the loop "
            "distributes as its option parallel says"
        )
    if ranks.count == 1:
        return DistributedModel(model=model.to(device), plain=model)
    if parallel == "ddp":
        return DistributedModel(model=DistributedDataParallel(model.to(device)), plain=model)
    model.cpu()
    for tensor in model.state_dict().values():
        if isinstance(tensor, Tensor):
            dist.broadcast(tensor, src=0, group=ranks.control)
    sharded = copy_model(model)
    _shard(sharded, device, compute if parallel == "fsdp2-policy" else torch.float32)
    return DistributedModel(model=sharded, plain=model)


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
    """Whether `fully_shard` was applied; found by its method, so that FSDP is not imported."""
    return hasattr(module, "set_requires_gradient_sync")


def is_distributed(module: Module) -> bool:
    """Whether calls of *module* must pass through DDP's or FSDP2's hooks."""
    return isinstance(module, DistributedDataParallel) or is_sharded(module)


def unwrapped(module: Module) -> Module:
    """The module inside DDP and `torch.compile`, with the parameter names of the plain model."""
    inner = module.module if isinstance(module, DistributedDataParallel) else module
    return cast("Module", getattr(inner, COMPILED, inner))


def whole_tensor(value: Any) -> Any:
    """All of a sharded tensor, gathered from every rank; any other value unchanged."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def policy_dtype(model: Module) -> torch.dtype | None:
    """Half dtype in which a `MixedPrecisionPolicy` of *model* makes it compute, or None.

    The policy has neither setter nor getter, so this reads FSDP2's own state.

    Raises:
        ValueError: Modules of *model* have different ones, or another dtype.
    """
    dtypes = {policy_dtype_of(module) for module in model.modules() if is_sharded(module)} - {
        None,
        torch.float32,
    }
    if len(dtypes) > 1 or dtypes - {torch.float16, torch.bfloat16}:
        raise ValueError(
            f"the model's MixedPrecisionPolicies have the param_dtypes {dtypes}: use one, "
            "float16 or bfloat16, in every fully_shard()"
        )
    return dtypes.pop() if dtypes else None


def method_of(module: Module, name: str) -> Callable[..., Any]:
    """The method or submodule *name* of a distributed module, called inside its forward hooks.

    Raises:
        AttributeError: It has neither.
    """
    if isinstance(module, DistributedDataParallel):
        getattr(module.module, name)
        return partial(_call_inside_ddp, module, name)
    attribute = getattr(module, name)
    hooked = f"_{name}_inside_fsdp" if isinstance(attribute, Module) else name
    if hooked not in vars(module):
        from torch.distributed.fsdp import register_fsdp_forward_method

        vars(module)[hooked] = attribute  # beside a submodule, which no function can replace
        register_fsdp_forward_method(module, hooked)
    method: Callable[..., Any] = getattr(module, hooked)
    return method


def _call_inside_ddp(
    ddp: DistributedDataParallel, name: str, *args: object, **kwargs: object
) -> object:
    """Run *name* in place of ``forward``, the only call in which DDP prepares its reduction."""
    module: Any = ddp.module

    def in_place_of_forward(*args: object, **kwargs: object) -> object:
        del module.forward
        return getattr(module, name)(*args, **kwargs)

    module.forward = in_place_of_forward
    try:
        return ddp(*args, **kwargs)
    finally:
        vars(module).pop("forward", None)
