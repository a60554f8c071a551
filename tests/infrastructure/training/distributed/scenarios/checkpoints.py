"""Checkpoints of one and of two ranks, and training that continues from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch.distributed as dist

from infrastructure.events.command import Stop
from infrastructure.training.checkpoints import CheckpointError
from infrastructure.training.checkpoints.sharded import shard_folders
from tests.infrastructure.training.distributed.scenarios.jobs import job, once, run
from tests.infrastructure.training.distributed.scenarios.registry import scenario
from tests.infrastructure.training.distributed.scenarios.trainers import (
    spread,
    steps,
    summary,
    trainer_of,
)


@scenario
def one_to_two(folder: Path) -> Any:
    trainer = trainer_of(spread("fsdp2"))
    trainer.load_checkpoint(folder / "of-one.pt")
    loaded = summary(trainer)
    steps(trainer, [5, 5])
    return {"loaded": loaded, "after": summary(trainer)}


@scenario
def two_to_one(folder: Path) -> Any:
    trainer = trainer_of(spread("fsdp2"))
    steps(trainer, [0, 1, 2, 3])
    trainer.save_checkpoint(folder / "of-two.pt")
    saved = summary(trainer)
    again = trainer_of(spread("fsdp2"))
    again.load_checkpoint(folder / "of-two.pt")
    steps(trainer, [5, 5])
    steps(again, [5, 5])
    return {"saved": saved, "after": summary(trainer), "again": summary(again)}


@scenario
def full_disk(folder: Path) -> Any:
    (folder / "a-file").touch()
    refusals = {}
    for kind in ("ddp", "fsdp2"):
        try:
            trainer_of(spread(kind)).save_checkpoint(folder / "a-file" / "x.pt")
        except CheckpointError as error:
            refusals[kind] = str(error)
    return refusals


@scenario
def whole_ddp(folder: Path) -> Any:
    return run(job(dropout=0.2, epochs=3), folder / "whole-ddp")


@scenario
def resume_fsdp2(folder: Path) -> Any:
    return {
        "whole": run(job(dropout=0.2), folder / "whole-fsdp2", parallel="fsdp2"),
        "stopped": run(
            job(dropout=0.2), folder / "fsdp2", once(Stop(reason="test")), parallel="fsdp2"
        ),
        "resumed": run(job(dropout=0.2), folder / "fsdp2", parallel="fsdp2"),
    }


@scenario
def stop_for_one(folder: Path) -> Any:
    """Leaves a sharded checkpoint that one process goes on from."""
    return run(job(), folder / "stop-for-one", once(Stop(reason="test")), parallel="fsdp2")


@scenario
def go_on_from_one(folder: Path) -> Any:
    return run(job(), folder / "go-on-from-one", parallel="fsdp2")


@scenario
def corrupt_shard(folder: Path) -> Any:
    folder = folder / "corrupt"
    saved = run(job(batches=12), folder, once(), parallel="fsdp2", checkpoint_interval_seconds=0.0)
    if dist.get_rank() == 0:
        shards = shard_folders(max(folder.glob("step-*.pt")))[-1] / "rank-1.pt"
        data = bytearray(shards.read_bytes())
        data[len(data) // 2] ^= 0xFF
        shards.write_bytes(data)
    dist.barrier()
    return {"saved": saved, "resumed": run(job(batches=12), folder, parallel="fsdp2")}


@scenario
def slow_ddp(folder: Path) -> Any:
    """To be killed."""
    (folder / f"pid-{dist.get_rank()}").write_text(str(os.getpid()))
    return run(
        job(dropout=0.2, epochs=3, pause=float((folder / "pause").read_text())),
        folder / "slow-ddp",
        checkpoint_interval_seconds=0.0,
    )
