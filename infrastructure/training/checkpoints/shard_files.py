"""Storage for `torch.distributed.checkpoint` in hashed files that are never pickled."""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from infrastructure.training.checkpoints.checkpoint import (
    CheckpointError,
    read_checkpoint,
    write_checkpoint,
)
from infrastructure.training.distributed import Ranks

Index = dict[str, Any]
Plan = TypeVar("Plan")


def write_shards(folder: Path, shards: dict[str, Tensor], ranks: Ranks) -> Index:
    """Write this rank's part of *shards*; every rank must call it.

    Returns:
        The index of all shards, in plain numbers and strings.

    Raises:
        CheckpointError: A rank could not write; on every rank.
    """
    writer = _Writer(folder, ranks.rank)
    try:
        save(shards, storage_writer=writer, process_group=ranks.control)
    except CheckpointException as error:
        raise _first_failure(folder, error) from error
    return ranks.broadcast(writer.index)


def read_shards(folder: Path, index: Index, targets: dict[str, Tensor], ranks: Ranks) -> None:
    """Fill *targets*, sharded or whole, from the files in *folder*; every rank must call it.

    Raises:
        CheckpointError: A file is missing, corrupt or of another shape; on every rank.
    """
    try:
        with warnings.catch_warnings():  # torch warns that a single process is not distributed
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(targets, storage_reader=_Reader(folder, index), process_group=ranks.control)
    except CheckpointException as error:
        raise _first_failure(folder, error) from error


def _first_failure(folder: Path, error: CheckpointException) -> CheckpointError:
    rank, (failure, _) = min(error.failures.items(), key=lambda item: item[0])
    if isinstance(failure, CheckpointError):
        return failure
    return CheckpointError(folder, f"failed on rank {rank} ({failure!r})", "see that rank's log")


class _PlansUnchanged:
    """Base of writer and reader: each is used once, for one folder, and keeps torch's plan."""

    def reset(self, checkpoint_id: object = None) -> None:
        """Do nothing: each object is used once."""

    def prepare_local_plan(self, plan: Plan) -> Plan:
        """Return *plan* unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[Plan]) -> list[Plan]:
        """Return *plans* unchanged."""
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: object) -> bool:
        """Accept no id: the constructor takes the folder."""
        return checkpoint_id is None


class _Writer(_PlansUnchanged, StorageWriter):
    """Writes one file for each rank; rank 0 keeps the index."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder, self._file = folder, f"rank-{rank}.pt"
        self.index: Index = {}

    def set_up_storage_writer(self, is_coordinator: bool, *args: object, **kwargs: object) -> None:
        """Do nothing: `write_checkpoint` makes the folder."""

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's tensors."""
        items: list[Any] = plan.items  # all of them tensors
        tensors = {
            str(number): cast("Tensor", planner.resolve_data(item)).detach().clone()
            for number, item in enumerate(items)
        }
        size = write_checkpoint(self._folder / self._file, tensors) if tensors else 0
        written: Future[list[WriteResult]] = Future()
        written.set_result(
            [
                WriteResult(
                    index=item.index,
                    size_in_bytes=0 if number else size,
                    storage_data={
                        "offset": [*item.tensor_data.chunk.offsets],
                        "size": [*item.tensor_data.chunk.sizes],
                        "file": self._file,
                        "name": str(number),
                    },
                )
                for number, item in enumerate(items)
            ]
        )
        return written

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Build the index."""
        entries: dict[str, Any] = metadata.state_dict_metadata
        tensors: Index = {
            name: {
                "size": [*entry.size],
                "dtype": str(entry.properties.dtype).removeprefix("torch."),
                "chunks": [],
            }
            for name, entry in entries.items()
        }
        written = [result for of_rank in results for result in of_rank]
        for result in written:
            tensors[result.index.fqn]["chunks"].append(result.storage_data)
        size = sum(result.size_in_bytes for result in written)
        self.index = {"folder": self._folder.name, "bytes": size, "tensors": tensors}


class _Reader(_PlansUnchanged, StorageReader):
    """Opens only the files that hold tensors of this rank's plan, one after the other."""

    def __init__(self, folder: Path, index: Index) -> None:
        self._folder, self._tensors = folder, index["tensors"]

    def read_metadata(self, *args: object, **kwargs: object) -> Metadata:
        """The index in torch's classes."""
        return Metadata(
            state_dict_metadata={
                name: TensorStorageMetadata(
                    TensorProperties(getattr(torch, entry["dtype"])),
                    torch.Size(entry["size"]),
                    [
                        ChunkStorageMetadata(torch.Size(c["offset"]), torch.Size(c["size"]))
                        for c in entry["chunks"]
                    ],
                )
                for name, entry in self._tensors.items()
            }
        )

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: object, **kwargs: object
    ) -> None:
        """Record the file and name of each piece."""
        self._where = {
            MetadataIndex(name, chunk["offset"]): (chunk["file"], chunk["name"])
            for name, entry in self._tensors.items()
            for chunk in entry["chunks"]
        }

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Copy every piece into its target tensor."""
        wanted: dict[str, list[tuple[str, ReadItem]]] = defaultdict(list)
        for item in plan.items:
            file, name = self._where[item.storage_index]
            wanted[file].append((name, item))
        for file, items in wanted.items():
            tensors = read_checkpoint(self._folder / file, torch.device("cpu"))
            for name, item in items:
                piece = tensors[name]
                for dimension, start in enumerate(item.storage_offsets):
                    piece = piece.narrow(dimension, start, item.lengths[dimension])
                target = planner.resolve_tensor(item).detach()
                target.copy_(piece)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done
