"""A whole run of an agent, phase by phase, with the functions that a worker calls."""

from __future__ import annotations

import cProfile
import pstats
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.run.subjects import AGENTS, CPU, PRECISION, loop_options, make_context
from benchmarks.run.training import Stopwatch, TimedJob
from infrastructure.agent_contract import EvaluationReport, TrainingJob
from infrastructure.events.event import BaseEvent, CheckpointSaved, StepStats
from infrastructure.training import FP16TrainingConfig
from infrastructure.training.diagnostics import check_fp32_step
from infrastructure.training.diagnostics.phase_clock import cpu_seconds
from infrastructure.training.loop import train
from infrastructure.trajectories import ReplayBuffer

_PARTS_OF_PUBLISHING = ("fit_linear", "fit_candidates", "gate_publication", "save")


class PhaseTimes:
    """Processor seconds by phase, also of child processes that have ended.

    A part is named ``phase: part`` and belongs to its phase.

    Attributes:
        seconds: Seconds by name, in the order of the run.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of the block to *name*."""
        begun = cpu_seconds()
        yield
        self.add(name, cpu_seconds() - begun)

    def add(self, name: str, seconds: float) -> None:
        """Add *seconds* to *name*."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @property
    def total(self) -> float:
        """Sum of the phases."""
        return sum(seconds for name, seconds in self.seconds.items() if ":" not in name)


def measure_run(
    name: str, home: Path, run: str, *, seed: int, collect_seconds: float
) -> PhaseTimes:
    """Run the agent *name* in *home* once, after what it has recorded there before.

    Args:
        run: Name of the run.
        collect_seconds: Longest time to collect.
    """
    agent, times = AGENTS[name](), PhaseTimes()
    context = make_context(name, home, run, seed=seed, seconds=collect_seconds)
    buffer = ReplayBuffer(context.agent_folder / "replay")
    with times.phase("collect"):
        for recorded, transition in enumerate(agent.collect(context), start=1):
            buffer.append(transition)
            if recorded == context.budget.transitions:
                break
        buffer.close()
    with times.phase("read"):
        transitions = list(iter(buffer.read()))  # ``list`` of a view would ask its length first
    with times.phase("encode"):
        job = agent.build_job(context, transitions)
    with times.phase("check"):
        check_fp32_step(job, CPU)
    report = _train(job, context.run_folder, seed, times)
    profile = cProfile.Profile(time.process_time)
    with times.phase("publish"):
        profile.runcall(agent.publish, context, job.model.eval(), report)
    for part, seconds in _cumulative(profile).items():
        times.add(f"publish: {part}", seconds)
    return times


def _train(job: TrainingJob, folder: Path, seed: int, times: PhaseTimes) -> EvaluationReport:
    timed, events = TimedJob.of(job), Stopwatch()
    checkpoints = 0.0

    def emit(event: BaseEvent) -> None:
        nonlocal checkpoints
        with events:
            if isinstance(event, CheckpointSaved):
                checkpoints += event.seconds
            if isinstance(event, StepStats):
                event.model_dump_json()

    with times.phase("train"):
        result = train(
            timed.job,
            device=CPU,
            precision=PRECISION,
            config=FP16TrainingConfig(),
            options=loop_options(seed),
            folder=folder / "checkpoints",
            emit=emit,
            commands=lambda: (),
            best_epoch=folder / "best-epoch.pt",
        )
    times.add("train: batches", timed.batches.seconds)
    times.add("train: evaluations", timed.evaluations.seconds)
    times.add("train: checkpoints (wall)", checkpoints)
    if result.evaluation is None:
        raise RuntimeError("the training was stopped")
    return EvaluationReport(evaluation=result.evaluation, steps=result.steps, epochs=result.epochs)


def _cumulative(profile: cProfile.Profile) -> Mapping[str, float]:
    """Seconds of the functions of publishing, each with all that it calls."""
    found: dict[str, float] = {}
    stats: Mapping[tuple[str, int, str], tuple[int, int, float, float, object]]
    stats = pstats.Stats(profile).stats  # type: ignore[attr-defined]  # documented, not in typeshed
    for (_, _, function), (_, _, _, cumulative, _) in stats.items():
        if function in _PARTS_OF_PUBLISHING:
            found[function] = found.get(function, 0.0) + cumulative
    return {name: found[name] for name in _PARTS_OF_PUBLISHING if name in found}
