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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from agents.policy.learner import PRIMARY, PolicyLearner, is_reinforced, new_policy
from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from benchmarks.measuring.machine import describe
from benchmarks.measuring.plot import Band, plot_bands
from benchmarks.measuring.table import format_table, write_csv
from infrastructure.agent_contract.on_policy_job import Roles
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events import PrecisionName, PrecisionState
from infrastructure.events.event import BaseEvent, Evaluated
from infrastructure.files import write_atomically
from infrastructure.policy.corrections import CORRECTIONS
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train

CPU = torch.device("cpu")
_COLUMNS = (
    *("task", "precision", "correction", "seeds", "after warm-up", "at the end"),
    "minus FP32",
    *("rounds to 0.8", "seconds to 0.8", "rounds", "seconds"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One training."""

    task: str
    precision: PrecisionName
    correction: str
    seed: int

    def __str__(self) -> str:
        return f"{self.task}-{self.precision}-{self.correction}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Point:
    """Attributes:
    round: Rounds trained, those with demonstrations included.
    reward: Held-out reward.
    cpu_seconds: CPU time of the training so far, over all its parts.
    """

    round: int
    reward: float
    cpu_seconds: float


@dataclass(slots=True)
class Curve:
    """Attributes:
    points: One for each evaluation.
    warm_up_rounds: Rounds until the last demonstration.
    warm_reward: Held-out reward after it.
    """

    points: list[Point]
    warm_up_rounds: int = 0
    warm_reward: float = 0.0


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


def _combinations(options: argparse.Namespace) -> Iterator[tuple[str, PrecisionName, str, int]]:
    for task, precision in itertools.product(options.task, options.precision):
        # In FP32 rollout and trainer agree, so that there is nothing to correct.
        corrections = ("none",) if precision == "fp32" else options.correction
        yield from itertools.product((task,), (precision,), corrections, options.seed)


def _settings(cell: Cell, options: argparse.Namespace) -> PolicySettings:
    return PolicySettings.model_validate(
        {
            "task": cell.task,
            "correction": cell.correction,
            "rounds": options.rounds,
            "learning_rate": options.learning_rate,
            "sync_every_rounds": options.sync_every_rounds,
        }
    )


def _curve(cell: Cell, options: argparse.Namespace) -> Curve:
    settings = _settings(cell, options)
    folder = options.output / "learning" / str(cell)
    path, asked = folder / "curve.json", settings.model_dump(mode="json")
    curve = Curve([])
    if path.exists():
        kept = json.loads(path.read_text())
        if PolicySettings.model_validate(kept["settings"]) != settings:
            raise SystemExit(f"{path} was made with other options: choose another --output")
        points = [Point(**each) for each in kept["points"]]
        curve = Curve(points, kept["warm_up_rounds"], kept["warm_reward"])
        if kept["complete"]:
            return curve
    folder.mkdir(parents=True, exist_ok=True)
    _train(cell, settings, folder, curve, lambda: _keep(path, asked, curve, False))
    _keep(path, asked, curve, True)
    return curve


def _keep(path: Path, settings: dict[str, object], curve: Curve, complete: bool) -> None:
    content = {"settings": settings, "complete": complete, **asdict(curve)}
    write_atomically(path, json.dumps(content))


def _train(
    cell: Cell,
    settings: PolicySettings,
    folder: Path,
    curve: Curve,
    keep: Callable[[], None],
) -> None:
    """Train from the beginning or a checkpoint, and add to *curve*."""
    learner = PolicyLearner(
        task=TASKS[settings.task], settings=settings, seed=cell.seed, warm=False
    )
    model = new_policy(learner.task, cell.seed)
    job = learner.job(model)
    spent = curve.points[-1].cpu_seconds if curve.points else 0.0
    begun = time.process_time()

    def batches(round_: int, roles: Roles) -> list[Batch]:
        found = list(job.batches(round_, roles))
        if not is_reinforced(found[0]):
            curve.warm_up_rounds = round_ + 1
        elif round_ == curve.warm_up_rounds:
            curve.warm_reward = job.evaluate(roles.policy).value
        return found

    def emit(event: BaseEvent) -> None:
        if isinstance(event, Evaluated):
            round_ = event.epoch * settings.rounds_per_epoch
            curve.points[:] = [each for each in curve.points if each.round < round_]
            seconds = spent + time.process_time() - begun
            curve.points.append(Point(round_, event.metrics[PRIMARY], seconds))
            keep()

    train(
        replace(job, batches=batches),
        device=CPU,
        precision=PrecisionState(
            requested=cell.precision, effective=cell.precision, reason="operator"
        ),
        config=FP16TrainingConfig(cpu_half=True),
        options=LoopOptions(seed=cell.seed),
        folder=folder / "checkpoints",
        emit=emit,
        commands=lambda: [],
    )


def _rows(curves: dict[Cell, Curve]) -> Iterator[dict[str, str]]:
    groups: defaultdict[tuple[str, str, str], list[Cell]] = defaultdict(list)
    for cell in curves:
        groups[cell.task, cell.precision, cell.correction].append(cell)
    for (task, precision, correction), cells in groups.items():
        found = [curves[cell] for cell in cells]
        reached = [next((p for p in each.points if p.reward > 0.8), None) for each in found]
        solved = [point for point in reached if point is not None]
        last = [each.points[-1] for each in found]
        yield {
            "task": task,
            "precision": precision,
            "correction": correction,
            "seeds": str(len(found)),
            "after warm-up": _mean([each.warm_reward for each in found]),
            "at the end": _mean([each.reward for each in last]),
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
    return _mean([last[cell] - last[fp32] for cell, fp32 in pairs])


def _interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds and the bounds of its 95 % interval by Student's t; equal for one seed."""
    from scipy import stats

    mean = statistics.fmean(values)
    if len(values) == 1:
        return mean, mean, mean
    error = statistics.stdev(values) / len(values) ** 0.5
    half = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean, mean - half, mean + half


def _mean(values: Sequence[float]) -> str:
    mean, low, high = _interval(values)
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} [{low:.3f}, {high:.3f}]"


def _draw(path: Path, curves: Mapping[Cell, Curve]) -> None:
    """Mean held-out reward over the rounds, with its interval, for each task and precision."""
    groups: defaultdict[str, defaultdict[str, list[Curve]]]
    groups = defaultdict(lambda: defaultdict(list))
    for cell, curve in curves.items():
        if cell.correction == "none":
            groups[cell.task][cell.precision.upper()].append(curve)
    panels = {
        task: {name: _band(found) for name, found in by_name.items()}
        for task, by_name in groups.items()
    }
    plot_bands(path, "Held-out reward of the policy agent", ("round", "held-out reward"), panels)


def _band(found: Sequence[Curve]) -> Band:
    points = zip(*(curve.points for curve in found), strict=True)
    intervals = [_interval([point.reward for point in same]) for same in points]
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
