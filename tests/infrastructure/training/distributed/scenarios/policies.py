"""The training of a policy on two ranks."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

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


@scenario
def policy_networks(folder: Path) -> Any:
    """The policy agent's losses that train a network beside the policy, demonstrations first."""
    from agents.policy.learner import PolicyLearner, new_policy
    from agents.policy.settings import PolicySettings
    from agents.policy.tasks import sorting

    task, results = sorting(2, warm_up_rounds=1), {}
    for loss, parallel, precision in (
        ("flowrl", "ddp", "fp32"),
        ("flowrl", "fsdp2", "fp16"),
        ("ppo", "ddp", "fp16"),
        ("ppo", "fsdp2", "fp32"),
    ):
        settings = PolicySettings(
            task="sorting", loss=loss, rounds=1, rounds_per_epoch=1, prompts_per_round=2
        )
        learner = PolicyLearner(task=task, settings=settings, seed=0, warm=False)
        result = run(
            learner.job(new_policy(task, 0), task.held_out_problems(2)),
            folder / f"networks-{loss}-{parallel}",
            parallel=parallel,
            precision=precision,
        )
        results[f"{loss}-{parallel}"] = {**result, "weights": math.fsum(result["weights"])}
    return results


@scenario
def adapters(folder: Path) -> Any:
    """A policy with an adapter stops after a step and resumes; whole, it does not stop."""
    from agents.policy.learner import PolicyLearner, new_policy
    from agents.policy.settings import PolicySettings
    from agents.policy.tasks import sorting
    from infrastructure.policy.adapters import with_adapter

    task, results = sorting(2, warm_up_rounds=1), {}
    settings = PolicySettings(
        task="sorting", loss="flowrl", rounds=1, rounds_per_epoch=1, prompts_per_round=2
    )
    learner = PolicyLearner(task=task, settings=settings, seed=0, warm=False)

    def part(name: str, parallel: str, commands: Callable[[], list[Any]] = list) -> Any:
        base = torch.bfloat16 if parallel == "ddp" else torch.float32
        model = with_adapter(new_policy(task, 0), 4, seed=0, base=base)
        job = learner.job(model, task.held_out_problems(2))
        result = run(job, folder / name, commands, parallel=parallel)
        return {**result, "weights": math.fsum(result["weights"])}

    for parallel in ("ddp", "fsdp2"):
        whole = part(f"adapter-whole-{parallel}", parallel)
        stop = after(2, Stop(reason="test"))
        stopped = part(f"adapter-{parallel}", parallel, stop)
        resumed = part(f"adapter-{parallel}", parallel)
        results[parallel] = {"whole": whole, "stopped": stopped, "resumed": resumed}
    return results
