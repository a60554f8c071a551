"""What a whole training costs, from the phases of a part of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from infrastructure.events.profile_report import STEP_PHASES, PhaseCost
from infrastructure.training.diagnostics.phase_clock import PhaseTime

FIRST_STEPS = "first steps"
SET_UP = "set up"
WARM_UP = "warm-up"
ROLLOUT = "rollout"
EVALUATE = "evaluate"
CHECKPOINT = "checkpoint"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingTimes:
    """Times of a part of a training.

    Attributes:
        set_up: Before the first step.
        first: Of the first steps, which make optimizer state and warm caches.
        steady: Of those after them.
        first_steps, steady_steps: Optimizer steps in them.
        total_steps: Optimizer steps of the whole training; None if unknown.
        epochs: Evaluations of the whole training.
        rounds, warm_up_rounds: Rounds of the whole training that the policy generates, and those
            before them; 0 for a job with recorded data.
        complete: Whether the whole training was measured.
        checkpoint_interval_seconds: Longest time between two checkpoints.
    """

    set_up: Mapping[str, PhaseTime]
    first: Mapping[str, PhaseTime]
    steady: Mapping[str, PhaseTime]
    first_steps: int
    steady_steps: int
    total_steps: int | None
    epochs: int
    rounds: int = 0
    warm_up_rounds: int = 0
    complete: bool = False
    checkpoint_interval_seconds: float = 15.0


def training_costs(times: TrainingTimes) -> list[PhaseCost]:
    """Cost of each phase, in the order of a run.

    The phases of a step are multiplied up to the steps of the plan; evaluations and rollouts to
    their number; checkpoints to what fits the interval. The set-up and the first steps count once.
    """
    apart = (WARM_UP, ROLLOUT, EVALUATE, CHECKPOINT)
    begun = _sum(spent for name, spent in times.set_up.items() if name not in apart)
    costs = [_cost(SET_UP, begun, 1, 1.0)]
    if times.first_steps and times.steady_steps:
        once = _sum(times.first[name] for name in STEP_PHASES if name in times.first)
        costs.append(_cost(FIRST_STEPS, once, times.first_steps, float(times.first_steps)))
        steps, measured = times.steady_steps, times.steady
        whole = None if times.total_steps is None else times.total_steps - times.first_steps
    else:  # the training ended within its first steps
        steps, measured = times.first_steps, times.first
        whole = times.total_steps
    if times.complete:
        whole = steps
    for name in STEP_PHASES:
        if name in measured:
            costs.append(_cost(name, measured[name], steps, whole and float(whole)))
    counts = {WARM_UP: times.warm_up_rounds, ROLLOUT: times.rounds, EVALUATE: times.epochs}
    for name, count in counts.items():
        spent = _both(times, name)
        if spent.count:
            costs.append(_cost(name, spent, spent.count, float(count)))
    saved = _both(times, CHECKPOINT)
    if saved.count:
        known = [cost.run_wall_seconds for cost in costs]
        seconds = sum(wall_seconds or 0.0 for wall_seconds in known)
        fitting = None if None in known else seconds // times.checkpoint_interval_seconds
        if fitting is not None and times.total_steps is not None:
            fitting = min(fitting, float(times.total_steps))  # one after a step at most
        costs.append(_cost(CHECKPOINT, saved, saved.count, fitting))
    return costs


def _both(times: TrainingTimes, name: str) -> PhaseTime:
    return _sum(part[name] for part in (times.set_up, times.first, times.steady) if name in part)


def _sum(times: Iterable[PhaseTime]) -> PhaseTime:
    total = PhaseTime()
    for time in times:
        total.count += time.count
        total.wall_seconds += time.wall_seconds
        total.cpu_seconds += time.cpu_seconds
        total.peak_bytes = max(total.peak_bytes or 0, time.peak_bytes or 0) or None
        total.peak_cuda_bytes = max(total.peak_cuda_bytes or 0, time.peak_cuda_bytes or 0) or None
    return total


def _cost(phase: str, time: PhaseTime, measured: int, whole: float | None) -> PhaseCost:
    return PhaseCost(
        phase=phase,
        measured=measured,
        wall_seconds=time.wall_seconds,
        cpu_seconds=time.cpu_seconds,
        whole=whole,
        peak_bytes=time.peak_bytes,
        peak_cuda_bytes=time.peak_cuda_bytes,
    )
