"""The training loop on two ranks: batches, precision and recovery are the same on both."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from infrastructure.events import PrecisionState, SetPrecision
from infrastructure.training.distributed import ranks
from infrastructure.training.loop import statistics
from infrastructure.training.loop import telemetry as loop_telemetry
from tests.infrastructure.training.distributed.scenarios.jobs import job, once, run
from tests.infrastructure.training.distributed.scenarios.registry import scenario
from tests.infrastructure.training.distributed.scenarios.trainers import (
    FP32,
    micro_batch,
    mse,
    sgd,
    spread,
)


@scenario
def unequal_last_batches(folder: Path) -> Any:
    return {
        f"{parallel}-{precision}": run(
            job(batches=5, optimizer=sgd),
            folder / f"{parallel}-{precision}",
            precision=precision,
            parallel=parallel,
        )
        for parallel, precision in (("ddp", "fp32"), ("ddp", "fp16"), ("fsdp2", "fp32"))
    }


@scenario
def flip(folder: Path) -> Any:
    results = {}
    for parallel in ("ddp", "fsdp2"):
        dtypes: list[str] = []

        def loss(forward: Any, batch: Any, seen: list[str] = dtypes) -> Tensor:
            with torch.enable_grad():
                value = mse(forward, batch)
            seen.append(str(forward._on.fast_dtype) if forward._enabled else "float32")
            return value

        results[parallel] = run(
            job(batches=24, loss=loss),
            folder / f"flip-{parallel}",
            once(SetPrecision(state=FP32)),
            parallel=parallel,
        )
        results[parallel]["dtypes"] = dtypes[:24]
    return results


@scenario
def auto(folder: Path) -> Any:
    """Settled at set-up under DDP, and in mid-run under FSDP2, when the model is in shards."""
    results = {}
    wish = PrecisionState(requested="auto", effective="auto", reason="default")
    for parallel, begin in (("ddp", wish), ("fsdp2", replace(wish, effective="fp32"))):
        calls: list[str] = []

        def loss(forward: Any, batch: Any, seen: list[str] = calls) -> Tensor:
            seen.append("fp32" if not forward._enabled else str(forward._on.fast_dtype))
            return mse(forward, batch)

        results[parallel] = run(
            job(loss=loss),
            folder / f"auto-{parallel}",
            once(SetPrecision(state=wish)),
            parallel=parallel,
            wish=begin,
        )
        results[parallel]["calls"] = len(calls)
        results[parallel]["last_dtype"] = calls[-2]  # the last is the baseline's, on rank 0
    return results


@scenario
def different_jobs(folder: Path) -> Any:
    refusals = []
    for attempt in (
        lambda: run(job(batches=5 + dist.get_rank()), folder / "different"),
        lambda: run(replace(job(), model=spread("ddp")), folder / "different"),
    ):
        try:
            attempt()
        except ValueError as error:
            refusals.append(str(error))
    return refusals


@scenario
def policy_needs_restart(folder: Path) -> Any:
    folder = folder / "policy"
    flip = once(SetPrecision(state=FP32))
    return {
        "stopped": run(job(), folder, flip, parallel="fsdp2-policy"),
        "resumed": run(job(), folder, parallel="fsdp2-policy", wish=FP32),
    }


@scenario
def go_back_together(folder: Path) -> Any:
    statistics._SHORTEST_WINDOW_SECONDS = 0.0
    ranks._SYNC_SECONDS = 0.0  # the ranks meet after every step, however fast the machine
    calls = iter(range(1000))

    def loss(forward: Any, batch: Any) -> Tensor:
        value = mse(forward, batch)
        bad = 20 <= next(calls) < 45 and dist.get_rank() == 1
        return value + math.nan if bad else value

    return run(
        job(batches=120, epochs=1, loss=loss),
        folder / "back",
        config={"nonfinite_loss_patience": 20},
        stats_interval_steps=1,
        checkpoint_interval_seconds=0.0,
    )


@scenario
def telemetry(folder: Path) -> Any:
    """Every step is measured; the gradient of each rank's third batch overflows."""
    statistics._SHORTEST_WINDOW_SECONDS = 0.0
    loop_telemetry._COST_SHARE, loop_telemetry._PAUSE_STEPS = math.inf, 1
    overflowing = [micro_batch(number)["x"] for number in (4, 5)]

    def loss(forward: Any, batch: Any) -> Tensor:
        value = mse(forward, batch)
        if any(torch.equal(batch["x"], each) for each in overflowing):
            return (value - value.detach()) * 1e10
        return value

    return {
        f"{parallel}-{interval}": run(
            job(loss=loss, dropout=0.2),
            folder / f"telemetry-{parallel}-{interval}",
            parallel=parallel,
            stats_interval_steps=1,
            telemetry_interval_steps=interval,
        )
        for parallel, interval in (("ddp", 0), ("ddp", 1), ("fsdp2", 1))
    }
