"""``python -m benchmarks.guard.provoke``: a policy in BF16, its mismatch, and the guard's answer.

The policy agent's job trains in this process, with the guard, its store and the daemon's rule for
precisions; only the daemon's process around them is missing. The same training runs in BF16 with
the guard, in BF16 without it, and in FP32.
"""

from __future__ import annotations

import argparse
import csv
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch

from agents.policy.learner import PolicyLearner, new_policy
from agents.policy.settings import PolicySettings
from agents.policy.tasks import TASKS
from benchmarks.measuring.table import format_table
from genesis_fp16.daemon.precision_resolver import PrecisionResolver
from genesis_fp16.domain.guard import Decision, GuardState
from genesis_fp16.guard import Guard
from genesis_fp16.plugins.probe import Hardware
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, PrecisionState, SetPrecision
from infrastructure.events.event import (
    BaseEvent,
    Evaluated,
    MismatchMeasured,
    PrecisionChanged,
    StepStats,
)
from infrastructure.policy.mismatch import MismatchObserver
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.loop import LoopOptions, train

AGENT = "policy"
LOSS_SCALE = 65536.0
OUTPUT = Path("benchmark_results")
INTERVAL_ROUNDS, COST_SHARE = 3, 0.5  # more often than in a daemon, for a short training


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One training.

    Attributes:
        name: Name in the output.
        half: Whether to train in BF16, as the default that nobody chose; else in FP32.
        guarded: Whether the guard may act.
        limit: GENESIS_GUARD_MISMATCH_KL.
        seed: Seed of weights, problems and completions.
        policy: Settings of the agent.
    """

    name: str
    half: bool
    guarded: bool
    limit: float
    seed: int
    policy: PolicySettings


@dataclass(kw_only=True, slots=True)
class Course:
    """What happened in a training.

    Attributes:
        samples: The mismatch, in the order of the rounds.
        rewards: Round and held-out reward of each evaluation.
        changes: Steps and states that the worker acknowledged.
        trips: The guard's trips, oldest first.
        seconds: Time of the optimizer steps.
    """

    plan: Plan
    samples: list[MismatchMeasured] = field(default_factory=list)
    rewards: list[tuple[int, float]] = field(default_factory=list)
    changes: list[tuple[int, PrecisionState]] = field(default_factory=list)
    trips: list[Decision] = field(default_factory=list)
    seconds: float = 0.0


def follow(plan: Plan, folder: Path) -> Course:
    """Train as *plan* says, with a store and evidence below *folder*."""
    settings = Settings(
        home=folder,
        precision="bf16",
        enable_fp16_training=plan.half,
        guard_enabled=plan.guarded,
        guard_mismatch_kl=plan.limit,
    ).model_copy(update={"cpu_half": True})
    hardware = Hardware(device="cpu", fp16=False, bf16=False, torch_version=torch.__version__)
    course = Course(plan=plan)
    with closing(Store.open(settings)) as store:
        run = store.enqueue(AGENT, first_seed=plan.seed)
        if store.begin_attempt(run.id, run.id) is None:
            raise RuntimeError(f"run {run.id} could not begin in {folder}")
        guard = Guard(store, settings)
        resolver = PrecisionResolver(store, hardware, settings, guard)
        sent = [resolver(run)]

        def emit(event: BaseEvent) -> None:
            guard.on_event(AGENT, run.id, cast("Event", event))
            guard.refresh()  # decisions and their evidence go to the store and the disk
            _note(course, event)

        def commands() -> Iterator[SetPrecision]:
            state = resolver(run)
            if state != sent[-1]:
                sent.append(state)
                yield SetPrecision(state=state)

        _train(plan, folder, sent[0], emit, commands)
        guard.refresh()
        history = store.guard.history(AGENT)
    course.trips = [each for each in reversed(history) if each.state is GuardState.TRIPPED]
    return course


def _train(
    plan: Plan,
    folder: Path,
    precision: PrecisionState,
    emit: Callable[[BaseEvent], None],
    commands: Callable[[], Iterator[SetPrecision]],
) -> None:
    torch.manual_seed(plan.seed)
    task = TASKS[plan.policy.task]
    learner = PolicyLearner(task=task, settings=plan.policy, seed=plan.seed, warm=False)
    job = learner.job(new_policy(task, plan.seed))
    if job.log_probs is None:
        raise RuntimeError("the policy agent's job has no log_probs, so nothing can be measured")
    config = FP16TrainingConfig(cpu_half=True, loss_scale=LOSS_SCALE)
    observer = MismatchObserver(
        job.log_probs, INTERVAL_ROUNDS, emit, cpu_half=True, cost_share=COST_SHARE
    )
    train(
        job,
        device=torch.device("cpu"),
        precision=precision,
        config=config,
        options=LoopOptions(seed=plan.seed, checkpoint_interval_seconds=math.inf),
        folder=folder / "checkpoints",
        emit=emit,
        commands=commands,
        observe_round=observer,
    )


def _note(course: Course, event: BaseEvent) -> None:
    match event:
        case MismatchMeasured():
            course.samples.append(event)
        case Evaluated():
            round_ = event.epoch * course.plan.policy.rounds_per_epoch
            course.rewards.append((round_, event.metrics[event.primary]))
            print(f"{course.plan.name}: round {round_}", flush=True)
        case PrecisionChanged():
            course.changes.append((event.step, event.state))
        case StepStats():
            course.seconds += event.seconds
        case _:
            pass


def format_courses(courses: Sequence[Course]) -> str:
    """A table of the courses, and what the guard said."""
    rows = []
    for each in courses:
        k3 = [f"{sample.report.k3:.2g}" for sample in each.samples] or ["-"]
        floor = [f"{sample.report.floor_k3:.1g}" for sample in each.samples] or ["-"]
        rows.append(
            {
                "training": each.plan.name,
                "samples": str(len(each.samples)),
                "k3 first": k3[0],
                "k3 last": k3[-1],
                "floor last": floor[-1],
                "reward": f"{each.rewards[-1][1]:.3f}" if each.rewards else "-",
                "trips": str(len(each.trips)),
            }
        )
    lines = [format_table(rows, list(rows[0]))]
    for each in courses:
        lines += [f"{each.plan.name}, step {trip.step}: {trip.reason}" for trip in each.trips]
        spent = sum(sample.report.seconds for sample in each.samples)
        lines.append(
            f"{each.plan.name}: {len(each.samples)} comparisons took {spent:.2f} s beside "
            f"{each.seconds:.1f} s of optimizer steps"
        )
    return "\n".join(lines)


def write_samples(path: Path, courses: Sequence[Course]) -> None:
    """Write every sample and evaluation as a row of a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["training", "round", "step", "policy", "rollout", "k3", "floor", "reward"])
        for each in courses:
            for sample in each.samples:
                report = sample.report
                pair = (report.policy, report.rollout, report.k3, report.floor_k3)
                writer.writerow([each.plan.name, sample.round, sample.step, *pair, ""])
            for round_, reward in each.rewards:
                writer.writerow([each.plan.name, round_, "", "", "", "", "", reward])


def draw(path: Path, courses: Sequence[Course]) -> None:
    """Draw the mismatch and the held-out reward of all courses over the rounds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    for each in courses:
        rounds = [sample.round for sample in each.samples]
        k3 = [max(sample.report.k3, 1e-16) for sample in each.samples]
        (line,) = above.plot(rounds, k3, marker=".", label=each.plan.name)
        below.plot(*zip(*each.rewards, strict=True), marker=".", color=line.get_color())
        switched = [step for step, state in each.changes if state.reason == "guard"]
        for step, trip in zip(switched, each.trips, strict=False):
            at = max((s.round for s in each.samples if s.step <= step), default=0)
            for axes in (above, below):
                axes.axvline(at, color=line.get_color(), linestyle=":")
            text = f" the guard: {_change(trip)}"
            above.annotate(text, (at, 1e-9), color=line.get_color(), fontsize=9)
    guarded = [each for each in courses if each.plan.guarded]
    if guarded:
        above.axhline(guarded[0].plan.limit, color="red", linewidth=0.8, label="limit")
    above.set(yscale="log", ylabel="k3, nats per token")
    above.legend(fontsize=8)
    below.set(ylabel="held-out reward", xlabel="round", ylim=(0, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _change(trip: Decision) -> str:
    roles = [f"{role} to {name.upper()}" for role, name in trip.roles.items()]
    return ", ".join(roles) or "every role to FP32"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write ``provoke.csv`` and ``provoke.png``; 1 if the guard did nothing."""
    options = _parse(arguments)
    torch.set_num_threads(1)
    policy = PolicySettings(
        task=options.task,
        start="random",
        rounds=options.rounds,
        rounds_per_epoch=5,
        learning_rate=options.learning_rate,
        prompts_per_round=options.prompts,
    )
    courses: list[Course] = []
    trainings = (
        ("BF16, guarded", True, True),
        ("BF16, not guarded", True, False),
        ("FP32", False, True),
    )
    with tempfile.TemporaryDirectory(prefix="genesis-provoke-") as folder:
        for name, half, guarded in trainings:
            plan = Plan(
                name=name,
                half=half,
                guarded=guarded,
                limit=options.limit,
                seed=options.seed,
                policy=policy,
            )
            courses.append(follow(plan, Path(folder) / str(len(courses))))
            print(f"{name}: finished", flush=True)
    print(format_courses(courses))
    write_samples(options.output / "provoke.csv", courses)
    draw(options.output / "provoke.png", courses)
    return 0 if courses[0].trips else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard.provoke", description=__doc__)
    parser.add_argument("--task", choices=sorted(TASKS), default="sorting")
    parser.add_argument("--rounds", type=int, default=90)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--limit", type=float, default=1e-5, help="GENESIS_GUARD_MISMATCH_KL")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
