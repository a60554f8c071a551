"""Checkpoints of a model that several ranks share, readable on any other number of ranks.

Each rank writes the shards it holds into a file of its own, hashed like every checkpoint. The
checkpoint itself holds the index of the shards and is written last: without it the shards do not
exist. `torch.distributed.checkpoint` plans which rank writes and reads which piece; its own file
format is not used, since it pickles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from infrastructure.training.checkpoints.checkpoint import (
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from infrastructure.training.distributed import Ranks

T = TypeVar("T")

_SHARD_KEY = "in_shards"


def write_state(path: Path, state: dict[str, Any], ranks: Ranks) -> int:
    """Write *state* once for all ranks; every rank must call it, and waits until it is written.

    Without sharded tensors rank 0 alone writes. A crash at any moment leaves the old checkpoint at
    *path*, or all of the new one.

    Returns:
        Size in bytes.

    Raises:
        CheckpointError: The operating system refused; on every rank.
    """
    shards: dict[str, Tensor] = {}
    rest, size = _extract(state, "", shards), 0
    if shards:
        from infrastructure.training.checkpoints.shard_files import write_shards

        folder = path.with_name(ranks.broadcast(_unused_folder(path).name))
        rest["shards"] = index = write_shards(folder, shards, ranks)
        size = index["bytes"]
    write = partial(write_checkpoint, path, rest if shards else state)
    outcome = ranks.broadcast(_result_or_error(write) if ranks.is_rank_zero else 0)
    if isinstance(outcome, CheckpointError):
        raise outcome
    return size + outcome


def read_state(
    path: Path, device: torch.device, ranks: Ranks, like: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Read what `write_state` wrote on any number of ranks; every rank must call it.

    Args:
        path: Path that every rank sees.
        like: The current sharded tensors by their place in the state; see `TrainerState.layout`.
            Tensors that belong to one of them are returned sharded like it, all others whole.

    Raises:
        CheckpointError: It is missing, incomplete, corrupt, or of a newer format; on every rank.
    """
    state = _result_or_error(partial(read_checkpoint, path, device))
    for error in ranks.gather(state if isinstance(state, CheckpointError) else None):
        if error is not None:
            raise error
    if isinstance(state, CheckpointError):
        raise state
    index = state.pop("shards", None)
    shards = {} if index is None else _read_shards(path, index, device, ranks, like)
    restored: dict[str, Any] = _insert(state, "", shards, like)
    return restored


def shard_folders(path: Path) -> list[Path]:
    """The folders of shards written for the checkpoint at *path*, complete or not, by age."""
    return sorted(path.parent.glob(f"{path.stem}.shards-*"), key=_number)


def _number(folder: Path) -> int:
    return int(folder.name.rpartition("-")[2])


def _unused_folder(path: Path) -> Path:
    number = max(map(_number, shard_folders(path)), default=0) + 1
    return path.with_name(f"{path.stem}.shards-{number}")


def _result_or_error(call: Callable[[], T]) -> T | CheckpointError:
    try:
        return call()
    except CheckpointError as error:
        return error


def _read_shards(
    path: Path,
    index: dict[str, Any],
    device: torch.device,
    ranks: Ranks,
    like: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    from infrastructure.training.checkpoints.shard_files import read_shards

    shards = {}
    for place, entry in index["tensors"].items():
        dtype = getattr(torch, entry["dtype"])
        model = _like(like, place, torch.Size(entry["size"]))
        if model is None:
            shards[place] = torch.empty(entry["size"], dtype=dtype, device=device)
        else:
            shards[place] = torch.empty_like(model, dtype=dtype, requires_grad=False)
    read_shards(path.with_name(index["folder"]), index, shards, ranks)
    return shards


def _like(like: Mapping[str, Tensor], place: str, size: torch.Size) -> Tensor | None:
    """The tensor at *place*, or the parameter whose optimizer state is at *place*."""
    for key in (place, place.rpartition("/")[0]):
        model = like.get(key)
        if model is not None and model.shape == size:
            return model
    return None


def _extract(node: Any, place: str, shards: dict[str, Tensor]) -> Any:
    """A copy of the tree *node* with every sharded tensor moved into *shards*."""
    if hasattr(node, "full_tensor"):
        shards[place] = node
        return {_SHARD_KEY: place}
    if isinstance(node, dict):
        prefix = f"{place}/" if place else ""
        return {key: _extract(value, f"{prefix}{key}", shards) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_extract(v, f"{place}/{i}", shards) for i, v in enumerate(node))
    return node


def _insert(node: Any, place: str, shards: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Any:
    """Undo `_extract`; a whole tensor that belongs to a sharded one is sharded like it."""
    if isinstance(node, dict):
        if _SHARD_KEY in node:
            return shards[node[_SHARD_KEY]]
        prefix = f"{place}/" if place else ""
        return {k: _insert(v, f"{prefix}{k}", shards, like) for k, v in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(_insert(v, f"{place}/{i}", shards, like) for i, v in enumerate(node))
    if isinstance(node, Tensor) and (model := _like(like, place, node.shape)) is not None:
        from torch.distributed.tensor import distribute_tensor

        sharded: Any = model
        return distribute_tensor(node, sharded.device_mesh, sharded.placements, src_data_rank=None)
    return node
