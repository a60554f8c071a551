"""``python -m benchmarks.actor_critic``: the example agents on Pendulum-v1.

SAC stands beside a textbook's loop. Both learn from 20,000 steps of the environment with one update
for each step after the warm-up, the example agent in rounds of 50. The Dreamer (``--agent
dreamer``), which learns from 6,000 steps, stands beside random actions, SAC, itself with rollouts
of one imagined step, and itself without imagination; see `without_imagination`. The mean action
plays 100 episodes from the same starts. On one thread a run takes one to two minutes of CPU time in
FP32.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import structlog
import torch
from torch import nn

from benchmarks.actor_critic import textbook_sac
from benchmarks.actor_critic.without_imagination import without_imagination
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table
from infrastructure.agent_contract import Agent, RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.agent_contract.training_job import Job
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PRECISIONS, PrecisionName
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.precision import PrecisionForward

EXAMPLES = Path(__file__).parents[2] / "examples"
CPU = torch.device("cpu")
Play = Callable[[PrecisionName, int], np.ndarray]
"""Function from precision and seed to the returns of 100 episodes."""

_COLUMNS = ("loop", "precision", "seeds", "mean return", "of each seed", "CPU s")


class _Policy(nn.Module):
    """The textbook's actor, as `sac_agent.returns` asks for it."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.policy = actor


def as_it_is(job: Job) -> Job:
    """*job*."""
    return job


def of_one_step(job: Job) -> Job:
    """*job* of the Dreamer, whose rollouts in imagination now have one step."""
    model: Any = job.model
    model.horizon = 1
    return job


def learned(module: str, agent: str, change: Callable[[Job], Job] = as_it_is) -> Play:
    """What an example agent plays after a run of its own, with a changed job."""

    def play(precision: PrecisionName, seed: int) -> np.ndarray:
        instance = getattr(import_module(module), agent)()
        return _returns(module, _trained(instance, change, precision, seed))

    return play


def _trained(
    agent: Agent, change: Callable[[Job], Job], precision: PrecisionName, seed: int
) -> nn.Module:
    with TemporaryDirectory() as folder:
        context = RunContext(
            run_id="benchmark",
            attempt=1,
            agent=agent.name,
            device="cpu",
            seed=seed,
            agent_folder=Path(folder) / "agent",
            run_folder=Path(folder) / "run",
            budget=Budget(seconds=3600, transitions=1),
            settings=None,
            logger=structlog.get_logger(),
            report_progress=lambda *_, **__: None,
        )
        job = change(agent.build_job(context, ()))
        train(
            job,
            device=CPU,
            precision=PrecisionState(requested=precision, effective=precision, reason="default"),
            config=FP16TrainingConfig(cpu_half=True),
            options=LoopOptions(seed=seed),
            folder=context.run_folder / "checkpoints",
            emit=lambda _event: None,
            commands=list,
        )
    model: nn.Module = job.model
    return model.eval()


def textbook(precision: PrecisionName, seed: int) -> np.ndarray:
    """What the textbook's actor plays after as many steps."""
    actor = textbook_sac.train(20_000, Precision(precision).compute, seed)
    return _returns("sac_agent", _Policy(actor))


def random(precision: PrecisionName, seed: int) -> np.ndarray:
    """What random actions play."""
    del precision
    example = import_module("dreamer_agent")
    first, episodes = example.DECIDING
    environments = example.pendulums(episodes)
    environments.reset(seed=first)
    environments.action_space.seed(seed)
    steps = [environments.step(environments.action_space.sample()) for _ in range(example.EPISODE)]
    total: np.ndarray = np.sum([reward for _, reward, *_ in steps], axis=0)
    return total


LOOPS: dict[str, dict[str, Play]] = {
    "sac": {"ours": learned("sac_agent", "SacAgent"), "textbook": textbook},
    "dreamer": {
        "random": random,
        "Dreamer": learned("dreamer_agent", "DreamerAgent"),
        "without imagination": learned("dreamer_agent", "DreamerAgent", without_imagination),
        "one imagined step": learned("dreamer_agent", "DreamerAgent", of_one_step),
        "SAC": learned("sac_agent", "SacAgent"),
    },
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, play and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.actor_critic", description=__doc__)
    parser.add_argument("--agent", choices=LOOPS, default="sac")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sys.path += [str(EXAMPLES / "sac_agent"), str(EXAMPLES / "dreamer_agent")]
    print(*describe(CPU).values())
    rows = []
    for precision in options.precisions:
        for name, play in LOOPS[options.agent].items():
            begun, played = time.process_time(), []
            for seed in options.seeds:
                played.append(play(precision, seed))
                print(precision, name, seed, f"{played[-1].mean():.1f}", flush=True)
            seconds = (time.process_time() - begun) / len(played)
            rows.append(
                {
                    "loop": name,
                    "precision": precision,
                    "seeds": str(len(played)),
                    "mean return": f"{fmean(map(np.mean, played)):.1f}",
                    "of each seed": ", ".join(
                        f"{one.mean():.0f} ± {one.std():.0f}" for one in played
                    ),
                    "CPU s": f"{seconds:.0f}",
                }
            )
            print(rows[-1], flush=True)
    print(format_table(rows, _COLUMNS))


def _returns(module: str, model: nn.Module) -> np.ndarray:
    example = import_module(module)
    forward = PrecisionForward(model, CPU, Precision.FP32)
    returns: np.ndarray = example.returns(forward, "cpu", *example.DECIDING)
    return returns


if __name__ == "__main__":
    main()
