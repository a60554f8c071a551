"""``python -m benchmarks.actor_critic``: SAC on Pendulum-v1 beside a textbook's loop.

Both learn from 20,000 steps of the environment with one update for each step after the warm-up, the
example agent in rounds of 50. Then the mean action plays 100 episodes from the same starts. On one
thread a run takes one to two minutes of CPU time in FP32.
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

import numpy as np
import structlog
import torch
from torch import nn

from benchmarks.actor_critic import textbook_sac
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table
from infrastructure.agent_contract import Forward, RunContext
from infrastructure.agent_contract.run_context import Budget
from infrastructure.events import PrecisionState
from infrastructure.events.precision_state import PRECISIONS, PrecisionName
from infrastructure.training import FP16TrainingConfig, Precision
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.precision import PrecisionForward

EXAMPLE = Path(__file__).parents[2] / "examples" / "sac_agent"
CPU = torch.device("cpu")
_COLUMNS = ("loop", "precision", "seeds", "mean return", "of each seed", "CPU s")


class _Policy(nn.Module):
    """The textbook's actor, as `sac_agent.returns` asks for it."""

    def __init__(self, actor: nn.Module) -> None:
        super().__init__()
        self.policy = actor


def ours(precision: PrecisionName, seed: int) -> nn.Module:
    """The networks of the example agent after a run of its own."""
    agent = import_module("sac_agent").SacAgent()
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
        job = agent.build_job(context, ())
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


def textbook(precision: PrecisionName, seed: int) -> nn.Module:
    """The textbook's actor after as many steps."""
    return _Policy(textbook_sac.train(20_000, Precision(precision).compute, seed))


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, play and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.actor_critic", description=__doc__)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(5)))
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    sys.path.append(str(EXAMPLE))
    print(*describe(CPU).values())
    loops: dict[str, Callable[[PrecisionName, int], nn.Module]] = {
        "ours": ours,
        "textbook": textbook,
    }
    rows = []
    for precision in options.precisions:
        for name, loop in loops.items():
            begun = time.process_time()
            played = [_play(loop(precision, seed)) for seed in options.seeds]
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


def _play(model: nn.Module) -> np.ndarray:
    forward: Forward = PrecisionForward(model, CPU, Precision.FP32)
    example = import_module("sac_agent")
    returns: np.ndarray = example.returns(forward, "cpu", *example.DECIDING)
    return returns


if __name__ == "__main__":
    main()
