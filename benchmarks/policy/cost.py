"""``python -m benchmarks.policy cost``: the share of a training that comparisons of roles take.

The policy agent's own job trains with its own loop, at the default cadence. Times are CPU time of
this process, which other processes hardly change.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from agents.policy.learner import PolicyLearner, new_policy
from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table
from genesis_fp16.settings import Settings
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.policy.mismatch import MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train
from infrastructure.training.rounds import GeneratedRound

CPU = torch.device("cpu")
_COLUMNS = ("precision", "rounds", "seconds", "comparisons", "first", "mean", "share")


class TimedObserver:
    """Measures the CPU time of a `MismatchObserver`.

    Attributes:
        rounds: Rounds that it was told of.
        seconds: CPU seconds of each comparison.
        idle_seconds: CPU seconds of the rounds that it did not compare.
    """

    def __init__(self, observer: MismatchObserver) -> None:
        self._observer = observer
        self.rounds, self.seconds, self.idle_seconds = 0, list[float](), 0.0

    def __call__(self, generated: GeneratedRound, step: int) -> None:
        """Pass a round on."""
        compared = self._observer.compared
        begun = time.process_time()
        self._observer(generated, step)
        seconds = time.process_time() - begun
        self.rounds += 1
        if self._observer.compared > compared:
            self.seconds.append(seconds)
        else:
            self.idle_seconds += seconds


def measure_cost(precision: PrecisionName, policy: PolicySettings, seed: int) -> dict[str, str]:
    """Train once in *precision*; one row of the table."""
    torch.manual_seed(seed)
    task = TASKS[policy.task]
    job = PolicyLearner(task=task, settings=policy, seed=seed, warm=False).job(
        new_policy(task, seed)
    )
    if job.log_probs is None:
        raise RuntimeError("the policy agent's job has no log_probs, so nothing can be measured")
    interval = Settings.model_fields["mismatch_interval_rounds"].default
    begun = time.process_time()
    observer = TimedObserver(
        MismatchObserver(
            job.log_probs, interval, lambda _: None, cpu_half=True, clock=time.process_time
        )
    )
    with tempfile.TemporaryDirectory(prefix="genesis-cost-") as folder:
        train(
            job,
            device=CPU,
            precision=PrecisionState(requested=precision, effective=precision, reason="operator"),
            config=FP16TrainingConfig(cpu_half=True),
            options=LoopOptions(seed=seed, checkpoint_interval_seconds=math.inf),
            folder=Path(folder),
            emit=lambda _: None,
            commands=list,
            observe_round=observer,
        )
    seconds = time.process_time() - begun
    spent = sum(observer.seconds)
    return {
        "precision": precision,
        "rounds": str(observer.rounds),
        "seconds": f"{seconds:.1f}",
        "comparisons": str(len(observer.seconds)),
        "first": f"{observer.seconds[0]:.3f}" if observer.seconds else "-",
        "mean": f"{spent / len(observer.seconds):.3f}" if observer.seconds else "-",
        "share": f"{(spent + observer.idle_seconds) / seconds:.2%}",
    }


def main(arguments: Sequence[str]) -> int:
    """Train in each precision and print the shares."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    machine = describe(CPU)
    print(f"{options.task}; {machine['device']}, torch {machine['torch']}", flush=True)
    rows = []
    for precision in options.precision:
        for rounds in options.rounds:
            policy = PolicySettings(
                task=options.task,
                start="random",
                rounds=rounds,
                kl_coefficient=options.kl_coefficient,
            )
            rows.append(measure_cost(precision, policy, options.seed))
            print(f"{precision}, {rounds} rounds: {rows[-1]['share']}", flush=True)
    print(format_table(rows, _COLUMNS))
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policy cost", description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), default="sorting")
    parser.add_argument(
        "--precision", nargs="+", choices=("fp32", "bf16", "fp16"), default=("fp32", "bf16")
    )
    parser.add_argument(
        "--rounds", nargs="+", type=int, default=(25, 150), help="after the warm-up"
    )
    parser.add_argument("--kl-coefficient", type=float, default=0.0, help="above 0: a reference")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)
