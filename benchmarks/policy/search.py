"""``python -m benchmarks.policy search``: whether BF16 loses where training is made harder.

The policy agent's job learns to sort. Each condition raises one thing: the length of the answer,
the age of the rollout's weights, the steps on one round's completions, or the learning rate. All
seeds are trained in FP32 and in BF16; a condition in which BF16 loses reward, beyond chance, is
trained in FP16, too. Finished trainings are not repeated, and one that was interrupted continues
from its checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from agents.policy.learner import PolicyLearner
from agents.policy.settings import PolicySettings
from agents.policy.tasks import Task, sorting
from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table, write_csv
from benchmarks.policy.learning import (
    CPU,
    Curve,
    interval_over_seeds,
    kept_curve,
    with_interval,
)
from infrastructure.events import PrecisionName

_COLUMNS = (
    *("condition", "precision", "seeds", "after warm-up", "at the end", "best"),
    *("minus FP32", "k3", "rounds", "seconds"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Condition:
    """What differs from the agent's defaults.

    Attributes:
        digits: Digits to put in order, and so the length of the answer.
        sync_every_rounds: Rounds between two copies of the weights to the rollout.
        steps_per_round: Optimizer steps that share a round's completions.
        rate: Factor of the learning rate.
        warm_up_rounds: Rounds in which demonstrations help; the agent's 50 are for five digits.
    """

    digits: int = 5
    sync_every_rounds: int = 1
    steps_per_round: int = 2
    rate: float = 1.0
    warm_up_rounds: int = 50

    @property
    def task(self) -> Task:
        """What is learned."""
        return sorting(self.digits, warm_up_rounds=self.warm_up_rounds)

    def settings(self, rounds: int) -> PolicySettings:
        """The agent's settings."""
        return PolicySettings(
            task="sorting",
            rounds=rounds,
            sync_every_rounds=self.sync_every_rounds,
            steps_per_round=self.steps_per_round,
            learning_rate=self.rate * self.task.learning_rate,
        )


CONDITIONS: Mapping[str, Condition] = MappingProxyType(
    {
        "default": Condition(),
        "rate-2": Condition(rate=2.0),
        "rate-4": Condition(rate=4.0),
        "rate-8": Condition(rate=8.0),
        "sync-4": Condition(sync_every_rounds=4),
        "sync-16": Condition(sync_every_rounds=16),
        "steps-8": Condition(steps_per_round=8),
        "digits-8": Condition(digits=8, warm_up_rounds=100),
        "digits-12": Condition(digits=12, warm_up_rounds=200),
        "together": Condition(digits=8, sync_every_rounds=4, rate=2.0, warm_up_rounds=100),
    }
)


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, print a table, and write ``search.csv``."""
    options = _parse(arguments)
    if importlib.util.find_spec("scipy") is None:
        print("not run: scipy is not installed: pip install '.[policy,bench]'")
        return 1
    torch.set_num_threads(1)
    machine = describe(CPU)
    print(f"{machine['device']}, torch {machine['torch']}", flush=True)
    rows = []
    for name in options.condition:
        for row in _rows(name, options):
            rows.append(row)
            print(", ".join(value for value in row.values() if value), flush=True)
    write_csv(options.output / "search.csv", rows, _COLUMNS)
    print(format_table(rows, _COLUMNS))
    return 0


def _rows(name: str, options: argparse.Namespace) -> Iterator[dict[str, str]]:
    fp32 = _curves(name, "fp32", options)
    yield _row(name, "fp32", fp32, None)
    bf16 = _curves(name, "bf16", options)
    yield _row(name, "bf16", bf16, fp32)
    _, _, high = interval_over_seeds(_differences(bf16, fp32))
    if high < 0.0 and len(options.seed) > 1:
        yield _row(name, "fp16", _curves(name, "fp16", options), fp32)


def _curves(name: str, precision: PrecisionName, options: argparse.Namespace) -> list[Curve]:
    condition, curves = CONDITIONS[name], list[Curve]()
    for seed in options.seed:
        learner = PolicyLearner(
            task=condition.task, settings=condition.settings(options.rounds), seed=seed, warm=False
        )
        folder = options.output / "search" / f"{name}-{precision}-{seed}"
        curve = kept_curve(folder, learner, precision, compare_every_rounds=25)
        last = curve.points[-1]
        print(
            f"{folder.name}: {curve.warm_reward:.3f} after {curve.warm_up_rounds} rounds of "
            f"warm-up, {last.reward:.3f} after {last.round}, {last.cpu_seconds:.0f} s of CPU time",
            flush=True,
        )
        curves.append(curve)
    return curves


def _row(
    name: str, precision: PrecisionName, curves: Sequence[Curve], fp32: Sequence[Curve] | None
) -> dict[str, str]:
    k3 = [k3 for each in curves for round_, k3 in each.k3 if round_ >= each.warm_up_rounds]
    return {
        "condition": name,
        "precision": precision,
        "seeds": str(len(curves)),
        "after warm-up": with_interval([each.warm_reward for each in curves]),
        "at the end": with_interval([each.points[-1].reward for each in curves]),
        "best": with_interval([max(p.reward for p in each.points) for each in curves]),
        "minus FP32": with_interval(_differences(curves, fp32)) if fp32 else "",
        "k3": "" if precision == "fp32" or not k3 else f"{statistics.median(k3):.1e}",
        "rounds": str(curves[0].points[-1].round),
        "seconds": f"{statistics.median(each.points[-1].cpu_seconds for each in curves):.0f}",
    }


def _differences(curves: Sequence[Curve], fp32: Sequence[Curve]) -> list[float]:
    """Last reward of each seed, minus that in FP32."""
    return [
        one.points[-1].reward - other.points[-1].reward
        for one, other in zip(curves, fp32, strict=True)
    ]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy search",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = list(CONDITIONS)
    parser.add_argument("--condition", nargs="+", choices=names, default=names)
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--rounds", type=int, default=150, help="rounds after the warm-up")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results/policy"))
    return parser.parse_args(arguments)
