"""``python -m benchmarks.policy learn``: how fast the policy agent learns, in each precision.

Each combination of task, precision, correction and seed is trained by the agent's own job and
loop, and keeps its curve in the folder ``--output``. A finished one is not repeated, and one that
was interrupted continues from its checkpoint.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch

from agents.policy.learner import PRIMARY, PolicyLearner, is_reinforced, new_policy
from agents.policy.settings import LossName, PolicySettings
from agents.policy.tasks import TASKS
from benchmarks.measuring.machine import describe
from benchmarks.measuring.plot import Band, plot_bands
from benchmarks.measuring.table import format_table, write_csv
from infrastructure.agent_contract.on_policy_job import Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.event import BaseEvent, Evaluated, MismatchMeasured
from infrastructure.files import write_atomically
from infrastructure.policy.corrections import CORRECTIONS
from infrastructure.policy.mismatch import MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train

CPU = torch.device("cpu")
LOSSES: tuple[LossName, ...] = get_args(LossName)
DEFAULT_LOSS: LossName = PolicySettings().loss
_COLUMNS = (
    *("task", "precision", "correction", "loss", "seeds", "after warm-up", "at the end"),
    "minus FP32",
    *("rounds to 0.8", "seconds to 0.8", "rounds", "seconds"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One training."""

    task: str
    precision: PrecisionName
    correction: str
    loss: LossName
    seed: int

    def __str__(self) -> str:
        loss = "" if self.loss == DEFAULT_LOSS else f"{self.loss}-"
        return f"{self.task}-{self.precision}-{self.correction}-{loss}{self.seed}"


@dataclass(frozen=True, slots=True)
class Point:
    """An evaluation on a learning curve.

    Attributes:
        round: Rounds trained, those with demonstrations included.
        reward: Held-out reward.
        cpu_seconds: CPU time of the training so far, over all its parts.
    """

    round: int
    reward: float
    cpu_seconds: float


@dataclass(slots=True)
class Curve:
    """The learning curve of one training.

    Attributes:
        points: One for each evaluation.
        warm_up_rounds: Rounds until the last demonstration.
        warm_reward: Held-out reward after it.
        k3: Round and k3 above its floor, in nats per token, of each comparison of rollout and
            trainer, if there were any.
    """

    points: list[Point]
    warm_up_rounds: int = 0
    warm_reward: float = 0.0
    k3: list[tuple[int, float]] = field(default_factory=list)


def main(arguments: Sequence[str]) -> int:
    """Train what is missing, then print a table; write ``learning.csv`` and ``learning.png``."""
    options = _parse(arguments)
    for library in ("scipy", "matplotlib"):
        if importlib.util.find_spec(library) is None:
            print(f"not run: {library} is not installed: pip install '.[policy,bench]'")
            return 1
    torch.set_num_threads(1)
    cells = [Cell(*each) for each in _combinations(options)]
    machine = describe(CPU)
    print(f"{len(cells)} trainings; {machine['device']}, torch {machine['torch']}", flush=True)
    curves: dict[Cell, Curve] = {}
    for cell in cells:
        curves[cell] = curve = _curve(cell, options)
        last = curve.points[-1]
        print(
            f"{cell}: {curve.warm_reward:.3f} after {curve.warm_up_rounds} rounds of warm-up, "
            f"{last.reward:.3f} after {last.round}, {last.cpu_seconds:.0f} s of CPU time",
            flush=True,
        )
    rows = list(_rows(curves))
    write_csv(options.output / "learning.csv", rows, _COLUMNS)
    print(format_table(rows, _COLUMNS))
    _draw(options.output / "learning.png", curves)
    return 0


def _combinations(
    options: argparse.Namespace,
) -> Iterator[tuple[str, PrecisionName, str, LossName, int]]:
    for task, precision in itertools.product(options.task, options.precision):
        # In FP32 rollout and trainer agree, so that there is nothing to correct.
        corrections = ("none",) if precision == "fp32" else options.correction
        yield from itertools.product((task,), (precision,), corrections, options.loss, options.seed)


def _settings(cell: Cell, options: argparse.Namespace) -> PolicySettings:
    return PolicySettings.model_validate(
        {
            "task": cell.task,
            "correction": cell.correction,
            "loss": cell.loss,
            "rounds": options.rounds,
            "learning_rate": options.learning_rate,
            "sync_every_rounds": options.sync_every_rounds,
        }
    )


def _curve(cell: Cell, options: argparse.Namespace) -> Curve:
    settings = _settings(cell, options)
    learner = PolicyLearner(
        task=TASKS[settings.task], settings=settings, seed=cell.seed, warm=False
    )
    return kept_curve(options.output / "learning" / str(cell), learner, cell.precision)


def kept_curve(
    folder: Path,
    learner: PolicyLearner,
    precision: PrecisionName,
    *,
    compare_every_rounds: int | None = None,
) -> Curve:
    """The curve that *folder* keeps; trains what is missing of it.

    Args:
        folder: Folder of this training alone, created if needed.
        learner: Makes the job.
        precision: That of the training.
        compare_every_rounds: Rounds between two comparisons of rollout and trainer; None for none.

    Raises:
        SystemExit: *folder* keeps the curve of other settings.
    """
    path, settings, curve = folder / "curve.json", learner.settings, Curve([])
    if path.exists():
        kept = json.loads(path.read_text())
        if PolicySettings.model_validate(kept.pop("settings")) != settings:
            raise SystemExit(f"{path} was made with other options: choose another --output")
        complete = kept.pop("complete")
        curve = Curve(**{**kept, "points": [Point(**each) for each in kept["points"]]})
        if complete:
            return curve
    folder.mkdir(parents=True, exist_ok=True)
    asked = settings.model_dump(mode="json")

    def keep(*, complete: bool) -> None:
        content = {"settings": asked, "complete": complete, **asdict(curve)}
        write_atomically(path, json.dumps(content))

    _train(folder, learner, precision, curve, compare_every_rounds, lambda: keep(complete=False))
    keep(complete=True)
    return curve


def _train(
    folder: Path,
    learner: PolicyLearner,
    precision: PrecisionName,
    curve: Curve,
    compare_every_rounds: int | None,
    keep: Callable[[], None],
) -> None:
    """Train from the beginning or a checkpoint, and add to *curve*."""
    job = learner.job(new_policy(learner.task, learner.seed))
    spent = curve.points[-1].cpu_seconds if curve.points else 0.0
    begun = time.process_time()

    def batches(round_: int, roles: Roles) -> list[Batch]:
        found = list(job.batches(round_, roles))
        if not is_reinforced(found[0]):  # before it continues, the loop tries round 0 again
            curve.warm_up_rounds = max(curve.warm_up_rounds, round_ + 1)
        elif round_ == curve.warm_up_rounds:
            curve.warm_reward = job.evaluate(roles.policy).value
            keep()  # before a checkpoint can follow
        return found

    def emit(event: BaseEvent) -> None:
        if isinstance(event, MismatchMeasured):
            curve.k3[:] = [each for each in curve.k3 if each[0] < event.round]
            curve.k3.append((event.round, event.report.excess_k3))
        if isinstance(event, Evaluated):
            round_ = event.epoch * learner.settings.rounds_per_epoch
            curve.points[:] = [each for each in curve.points if each.round < round_]
            seconds = spent + time.process_time() - begun
            curve.points.append(Point(round_, event.metrics[PRIMARY], seconds))
            keep()

    observer = None
    if compare_every_rounds is not None and job.log_probs is not None:
        observer = MismatchObserver(
            job.log_probs, compare_every_rounds, emit, cpu_half=True, cost_share=1.0
        )
    train(
        replace(job, batches=batches),
        device=CPU,
        precision=PrecisionState(requested=precision, effective=precision, reason="operator"),
        config=FP16TrainingConfig(cpu_half=True),
        options=LoopOptions(seed=learner.seed),
        folder=folder / "checkpoints",
        emit=emit,
        commands=lambda: [],
        observe_round=observer,
    )


def _rows(curves: dict[Cell, Curve]) -> Iterator[dict[str, str]]:
    groups: defaultdict[Cell, list[Cell]] = defaultdict(list)
    for cell in curves:
        groups[replace(cell, seed=0)].append(cell)
    for group, cells in groups.items():
        found = [curves[cell] for cell in cells]
        reached = [next((p for p in each.points if p.reward > 0.8), None) for each in found]
        solved = [point for point in reached if point is not None]
        last = [each.points[-1] for each in found]
        yield {
            "task": group.task,
            "precision": group.precision,
            "correction": group.correction,
            "loss": group.loss,
            "seeds": str(len(found)),
            "after warm-up": with_interval([each.warm_reward for each in found]),
            "at the end": with_interval([each.reward for each in last]),
            "minus FP32": _from_fp32(curves, cells),
            "rounds to 0.8": _median([p.round for p in solved], len(found)),
            "seconds to 0.8": _median([p.cpu_seconds for p in solved], len(found)),
            "rounds": str(last[0].round),
            "seconds": f"{statistics.median(each.cpu_seconds for each in last):.0f}",
        }


def _from_fp32(curves: Mapping[Cell, Curve], cells: Sequence[Cell]) -> str:
    """Mean difference of the last reward from that of the same seeds in FP32."""
    pairs = [(cell, replace(cell, precision="fp32", correction="none")) for cell in cells]
    if cells[0].precision == "fp32" or any(fp32 not in curves for _, fp32 in pairs):
        return ""
    last = {cell: curve.points[-1].reward for cell, curve in curves.items()}
    return with_interval([last[cell] - last[fp32] for cell, fp32 in pairs])


def interval_over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds and the bounds of its 95 % interval by Student's t; equal for one seed."""
    from scipy import stats

    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    error = statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half


def with_interval(values: Sequence[float]) -> str:
    """Mean over seeds, with its interval if there are several."""
    mean, low, high = interval_over_seeds(values)
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _draw(path: Path, curves: Mapping[Cell, Curve]) -> None:
    """Mean held-out reward over the rounds, with its interval, for each task and precision.

    Only of the agent's loss without corrections; without such curves, nothing is drawn.
    """
    groups: defaultdict[str, defaultdict[str, list[Curve]]]
    groups = defaultdict(lambda: defaultdict(list))
    for cell, curve in curves.items():
        if cell.correction == "none" and cell.loss == DEFAULT_LOSS:
            groups[cell.task][cell.precision.upper()].append(curve)
    panels = {
        task: {name: _band(found) for name, found in by_name.items()}
        for task, by_name in groups.items()
    }
    if panels:
        title, labels = "Held-out reward of the policy agent", ("round", "held-out reward")
        plot_bands(path, title, labels, panels)


def _band(found: Sequence[Curve]) -> Band:
    points = zip(*(curve.points for curve in found), strict=True)
    intervals = [interval_over_seeds([point.reward for point in same]) for same in points]
    middle, low, high = zip(*intervals, strict=True)
    return Band([point.round for point in found[0].points], middle, low, high)


def _median(values: Sequence[float], of: int) -> str:
    if not values:
        return "never"
    seeds = "" if len(values) == of else f" ({len(values)} of {of} seeds)"
    return f"{statistics.median(values):.0f}{seeds}"


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policy learn",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = sorted(TASKS)
    parser.add_argument("--task", nargs="+", choices=names, default=names)
    precisions = ["fp32", "fp16", "bf16"]
    parser.add_argument("--precision", nargs="+", choices=precisions, default=precisions)
    parser.add_argument("--correction", nargs="+", choices=[*CORRECTIONS], default=["none"])
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=[DEFAULT_LOSS])
    parser.add_argument("--seed", nargs="+", type=int, default=[1, 2, 3, 4, 5])
    parser.add_argument("--rounds", type=int, default=300, help="rounds after the warm-up")
    parser.add_argument("--learning-rate", type=float, help="default: the task's")
    parser.add_argument("--sync-every-rounds", type=int, default=1, help="staleness")
    parser.add_argument("--quick", action="store_true", help="one seed, two tasks, 100 rounds")
    parser.add_argument("--output", type=Path, default=Path("benchmark_results/policy"))
    options = parser.parse_args(arguments)
    if options.quick:
        options.task, options.seed, options.rounds = ["brackets", "sorting"], [1], 100
        options.output = options.output / "quick"
    return options
