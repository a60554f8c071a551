"""The training of a policy on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from infrastructure.events import SetPrecision
from infrastructure.events.command import Stop
from tests.infrastructure.training.distributed.scenarios.jobs import after, language_job, run
from tests.infrastructure.training.distributed.scenarios.registry import scenario
from tests.infrastructure.training.distributed.scenarios.trainers import FP32


@scenario
def policy_flip(folder: Path) -> Any:
    return {
        parallel: run(
            language_job(overflow_at=1)[0],
            folder / f"policy-{parallel}",
            after(5, SetPrecision(state=FP32)),
            parallel=parallel,
        )
        for parallel in ("ddp", "fsdp2")
    }


@scenario
def policy_stop_for_one(folder: Path) -> Any:
    return run(language_job()[0], folder / "policy-two", after(3, Stop(reason="test")))


@scenario
def policy_go_on_from_one(folder: Path) -> Any:
    job, rounds = language_job()
    return {**run(job, folder / "policy-one", parallel="fsdp2"), "rounds": rounds}
