"""What the guard detects in one agent's events and in its runs' metrics. Pure: no I/O, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev

from genesis_fp16.domain.guard import HISTORY_LIMIT, Detection, GuardSettings, RunPair, Trigger
from genesis_fp16.guard.mismatch import MismatchDetector
from genesis_fp16.settings import Settings
from infrastructure.events import Event, PrecisionState
from infrastructure.events.event import (
    SMALLEST_LOSS,
    BaselineCompared,
    CheckpointSaved,
    MismatchMeasured,
    OverflowDiagnosed,
    PartStats,
    PrecisionChanged,
    Started,
    StepStats,
)

WRONG_GRADIENT = 0.25  # relative error from which a gradient leads astray; pre-flight's limit
BLOCKED = 0.05  # of the gradient, in parameters that get none: an optimizer such as Adam's
# takes steps of one size for all parameters, so these count although their gradients are small
_KEPT_EVENTS = 50  # of each kind, for the evidence

# Student's t that chance exceeds once in 1000 times, by degrees of freedom; the last for all above.
_STUDENT_T = (318.3, 22.33, 10.21, 7.17, 5.89, 5.21, 4.79, 4.50, 4.30, 4.14)


@dataclass(frozen=True, kw_only=True, slots=True)
class LossScaling:
    """How the trainer scales its loss.

    Attributes:
        backoff_factor: Factor by which an overflow multiplies the scale.
        floor: Smallest scale.
    """

    backoff_factor: float = 0.5
    floor: float = 2.0**-16

    def backoffs_from(self, loss_scale: float) -> int:
        """How many overflows lead from *loss_scale* to the floor."""
        above_floor = max(1.0, loss_scale / self.floor)
        return math.ceil(-math.log(above_floor) / math.log(self.backoff_factor))


def scaling_of(settings: Settings) -> LossScaling:
    """How trainers with these settings scale their losses."""
    return LossScaling(backoff_factor=settings.backoff_factor, floor=settings.min_loss_scale)


class AgentObserver:
    """Observes one agent's events since the guard's last decision on it.

    Attributes:
        run_id: Run under way, or the last.
        step: Steps attempted in it.
        half_steps: Steps observed in half precision.
    """

    def __init__(self) -> None:
        self.run_id, self.step, self._device = "", 0, "cpu"
        self._checkpoint: CheckpointSaved | None = None
        self._half_type_is_default = False
        self._mismatches = MismatchDetector()
        self.reset()

    def reset(self) -> None:
        """Start from the beginning: what was observed has led to a decision."""
        self.half_steps = 0
        self._overflows, self._comparisons = JobOverflowDetector(), ComparisonDetector()
        self._recent: deque[StepStats] = deque(maxlen=_KEPT_EVENTS)
        self._compared: deque[BaselineCompared] = deque(maxlen=_KEPT_EVENTS)
        self._mismatches = MismatchDetector(self._mismatches.detected)
        self._mismatched: deque[MismatchMeasured] = deque(maxlen=_KEPT_EVENTS)
        self._diagnosed: deque[OverflowDiagnosed] = deque(maxlen=_KEPT_EVENTS)

    def observe(
        self,
        run_id: str,
        event: Event,
        settings: GuardSettings,
        *,
        on_probation: bool,
        scaling: LossScaling,
    ) -> Detection | None:
        """Record an event; return what it shows against half precision, if anything.

        Args:
            run_id: Run of the worker.
            event: Event that the worker reported.
            settings: Settings with the limits.
            on_probation: Whether one window is enough for `Trigger.OVERFLOW_SUSTAINED`, and one
                sample for `Trigger.MISMATCH`.
            scaling: Loss scaling of attempts that begin now.
        """
        if run_id != self.run_id:
            self.run_id, self.step, self._checkpoint = run_id, 0, None
        match event:
            case Started() | CheckpointSaved() | OverflowDiagnosed():
                self._note(event)
            case PrecisionChanged():
                self._half_type_is_default = _is_default(event.state)
                if event.state.effective == "fp16":
                    self._overflows.begin(event.loss_scale, scaling)
            case StepStats():
                self.step = event.step
                if event.precision != "fp32":
                    return self._observe_steps(event, settings, on_probation=on_probation)
            case BaselineCompared():
                self._compared.append(event)
                accelerator = not self._device.startswith("cpu")
                return self._comparisons.add(event, settings, accelerator=accelerator)
            case MismatchMeasured():
                self.step = max(self.step, event.step)
                self._mismatched.append(event)
                return self._mismatches.add(
                    event.report,
                    settings,
                    on_probation=on_probation,
                    other_half_allowed=self._half_type_is_default,
                )
            case _:
                pass
        return None

    def _note(self, event: Started | CheckpointSaved | OverflowDiagnosed) -> None:
        """Keep what belongs to the evidence alone."""
        if isinstance(event, Started):
            self._device = event.device
        elif isinstance(event, CheckpointSaved):
            self._checkpoint = event
        else:
            self._diagnosed.append(event)

    def _observe_steps(
        self, stats: StepStats, settings: GuardSettings, *, on_probation: bool
    ) -> Detection | None:
        self.half_steps += stats.attempted
        self._recent.append(stats)
        losses, limit = stats.consecutive_nonfinite_losses, settings.guard_nonfinite_losses
        if losses >= limit:
            return _of_part(
                ", ".join(stats.parts_with_nonfinite_losses(limit)),
                Detection(
                    trigger=Trigger.NONFINITE_LOSS,
                    summary=f"{losses} losses in a row were not finite in {stats.precision}; "
                    f"the limit is {limit}",
                    numbers={"consecutive": losses, "limit": limit},
                ),
            )
        return self._overflows.add(stats, settings, on_probation=on_probation)

    @property
    def left_to_scale(self) -> dict[str, int]:
        """Overflows, and comparisons with vanishing gradients, that the loss scale cures itself."""
        return {
            "overflows": self._overflows.left_to_scale,
            "comparisons": self._comparisons.left_to_scale,
        }

    def evidence(self) -> dict[str, object]:
        """What was observed: statistics, measurements, modules, the last checkpoint."""
        last = list(self._compared)[-1:]
        modules = [
            name for report in last for name in (report.nonfinite_module, report.worst_module)
        ]
        modules += [diagnosis.module for diagnosis in list(self._diagnosed)[-1:]]
        return {
            "device": self._device,
            "half_steps": self.half_steps,
            "left_to_scale": self.left_to_scale,
            "statistics": [stats.model_dump(mode="json") for stats in self._recent],
            "comparisons": [comparison.model_dump(mode="json") for comparison in self._compared],
            "overflow_diagnoses": [
                diagnosis.model_dump(mode="json") for diagnosis in self._diagnosed
            ],
            "mismatches": [mismatch.model_dump(mode="json") for mismatch in self._mismatched],
            "offending_modules": sorted({name for name in modules if name}),
            "checkpoint": self._checkpoint.model_dump(mode="json") if self._checkpoint else None,
        }


def _is_default(state: PrecisionState) -> bool:
    """Whether neither an operator nor an agent chose the half type, of the run or of a role."""
    computes = {types.split("/")[1] for types in state.roles.values()}
    return state.reason == "default" and computes <= {state.effective}


class OverflowDetector:
    """Detects too many overflows in windows of half-precision steps, across runs of one agent.

    A training begins with a loss scale that may be far too high: every step overflows until one
    fits. These overflows are the search for a scale and are not counted. There are at most as
    many as lead from the initial scale to the floor.

    Attributes:
        left_to_scale: Overflows that were not counted.
    """

    def __init__(self) -> None:
        self.left_to_scale = 0
        self._floor = 0.0
        self._ratios: deque[float] = deque(maxlen=HISTORY_LIMIT)
        self._steps = self._overflows = 0
        self._search_left = 0  # overflows that may still belong to the search

    def begin(self, loss_scale: float, scaling: LossScaling) -> None:
        """FP16 begins at *loss_scale*: a search may follow."""
        self._floor, self._search_left = scaling.floor, scaling.backoffs_from(loss_scale)

    def add(
        self, stats: StepStats, settings: GuardSettings, *, on_probation: bool
    ) -> Detection | None:
        """Count steps made in half precision; arguments as in `AgentObserver.observe`."""
        searching = min(self._search_left, stats.overflow)
        self._search_left = 0 if stats.applied else self._search_left - searching
        self.left_to_scale += searching
        self._steps += stats.attempted - searching
        self._overflows += stats.overflow - searching
        if stats.precision == "fp16" and stats.overflow and stats.loss_scale <= self._floor:
            return self._at_floor(stats)
        if self._steps < settings.guard_window_steps:
            return None
        return self._close_window(settings, on_probation=on_probation)

    def _at_floor(self, stats: StepStats) -> Detection:
        summary = (
            f"{stats.overflow} of {stats.attempted} steps overflowed with the loss scale at its "
            f"floor, {stats.loss_scale:g}: no scale fits these gradients"
        )
        numbers: dict[str, object] = {"steps": stats.attempted, "overflows": stats.overflow}
        numbers |= {"loss_scale": stats.loss_scale, "floor": self._floor}
        return Detection(trigger=Trigger.SCALE_FLOOR, summary=summary, numbers=numbers)

    def _close_window(self, settings: GuardSettings, *, on_probation: bool) -> Detection | None:
        steps, overflows = self._steps, self._overflows
        self._steps = self._overflows = 0
        self._ratios.append(overflows / steps)
        wanted = 1 if on_probation else settings.guard_sustained_windows
        last = list(self._ratios)[-wanted:]
        numbers = {"steps": steps, "overflows": overflows, "ratios": list(self._ratios)}
        counted = f"{overflows} of {steps} steps overflowed ({overflows / steps:.0%}"
        if overflows / steps > settings.guard_storm_ratio:
            limit = settings.guard_storm_ratio
            return Detection(
                trigger=Trigger.OVERFLOW_STORM,
                summary=f"{counted}; the limit is {limit:.0%})",
                numbers={**numbers, "limit": limit},
            )
        limit = settings.guard_sustained_ratio
        if len(last) == wanted and min(last) >= limit:
            return Detection(
                trigger=Trigger.OVERFLOW_SUSTAINED,
                summary=f"{counted}), at least {limit:.0%} in each of the last {wanted} windows",
                numbers={**numbers, "limit": limit, "windows": wanted},
            )
        return None


class JobOverflowDetector:
    """An `OverflowDetector` for each part of a job: among the steps of all, those of one are few.

    A job without parts has one detector.
    """

    def __init__(self) -> None:
        self._detectors: dict[str, OverflowDetector] = {}
        self._begun: tuple[float, LossScaling] | None = None

    @property
    def left_to_scale(self) -> int:
        """See `OverflowDetector`."""
        return sum(detector.left_to_scale for detector in self._detectors.values())

    def begin(self, loss_scale: float, scaling: LossScaling) -> None:
        """See `OverflowDetector.begin`; *loss_scale* is the lowest of the parts."""
        self._begun = loss_scale, scaling
        for detector in self._detectors.values():
            detector.begin(loss_scale, scaling)

    def add(
        self, stats: StepStats, settings: GuardSettings, *, on_probation: bool
    ) -> Detection | None:
        """Count the steps of each part; return the first detection, with the part's name."""
        counted = {part.name: _steps_of(part, stats) for part in stats.parts} or {"": stats}
        self._detectors = {name: self._detectors.get(name) or self._new() for name in counted}
        found = None
        for name, steps in counted.items():
            detection = self._detectors[name].add(steps, settings, on_probation=on_probation)
            if detection is not None:
                found = found or _of_part(name, detection)
        return found

    def _new(self) -> OverflowDetector:
        detector = OverflowDetector()
        if self._begun is not None:
            detector.begin(*self._begun)
        return detector


def _of_part(name: str, detection: Detection) -> Detection:
    """*detection*, which names the part *name*; unchanged if the job has no parts."""
    if not name:
        return detection
    summary, numbers = f"part {name}: {detection.summary}", {**detection.numbers, "part": name}
    return replace(detection, summary=summary, numbers=numbers)


def _steps_of(part: PartStats, stats: StepStats) -> StepStats:
    """Statistics of *part* alone, in place of the sums of *stats*."""
    changes: dict[str, object] = {
        "applied": part.attempted - part.overflow - part.nonfinite_loss,
        "overflow": part.overflow,
        "nonfinite_loss": part.nonfinite_loss,
        "no_gradient": 0,
        "loss_scale": part.loss_scale,
    }
    return stats.model_copy(update=changes)


class ComparisonDetector:
    """Detects comparisons with FP32 on a frozen batch that agree against half precision.

    Gradients that vanish while the loss scale grows are left to the scale.

    Attributes:
        left_to_scale: Comparisons that were.
    """

    def __init__(self) -> None:
        self.left_to_scale, self._scale = 0, math.inf  # of the last comparison
        self._drifts: deque[float] = deque(maxlen=HISTORY_LIMIT)
        self._underflows: deque[float] = deque(maxlen=HISTORY_LIMIT)
        self._speedups: deque[float] = deque(maxlen=HISTORY_LIMIT)

    def add(
        self, compared: BaselineCompared, settings: GuardSettings, *, accelerator: bool
    ) -> Detection | None:
        """Count a comparison; its times do not count without an *accelerator*, on a CPU."""
        wanted = settings.guard_comparisons
        drift = compared.loss_error
        if not math.isnan(drift):
            _extend_streak(self._drifts, drift, drift > settings.guard_loss_drift)
        lost, error = compared.underflow, compared.gradient_error
        if compared.comparable and lost is not None and error is not None:
            vanish = WRONG_GRADIENT < error < math.inf and lost > settings.guard_underflow
            vanish |= (compared.blocked or 0.0) > BLOCKED
            if vanish and compared.loss_scale > self._scale:
                self.left_to_scale += 1
            else:
                _extend_streak(self._underflows, lost, vanish)
        self._scale = compared.loss_scale
        if accelerator and compared.seconds and compared.fp32_seconds:
            self._speedups.append(compared.fp32_seconds / compared.seconds)
        if len(self._drifts) >= wanted:
            return _loss_drift(compared, list(self._drifts), settings)
        if len(self._underflows) >= wanted:
            return _underflow(compared, list(self._underflows), settings)
        recent = list(self._speedups)[-wanted:]
        if len(recent) == wanted and median(recent) < settings.guard_min_speedup:
            return _slowdown(recent, settings)
        return None


def _extend_streak(streak: deque[float], value: float, beyond_limit: bool) -> None:
    """Append a *value* beyond the limit; one within it ends the streak."""
    if beyond_limit:
        streak.append(value)
    else:
        streak.clear()


def _loss_drift(
    compared: BaselineCompared, drifts: list[float], settings: GuardSettings
) -> Detection:
    small = abs(compared.fp32_loss) < compared.loss_size
    whole = f"{SMALLEST_LOSS:.0%} of the run's largest FP32 loss" if small else "the FP32 loss"
    summary = (
        f"the {compared.precision} loss of a frozen batch is {compared.loss:.6g}, the FP32 loss is "
        f"{compared.fp32_loss:.6g}: the difference is {drifts[-1]:.1%} of {compared.loss_size:.6g} "
        f"({whole}), above the limit of {settings.guard_loss_drift:.1%} in {len(drifts)} "
        "comparisons in a row"
    )
    numbers = {"drifts": drifts, "limit": settings.guard_loss_drift}
    return Detection(trigger=Trigger.LOSS_DRIFT, summary=summary, numbers=numbers)


def _underflow(compared: BaselineCompared, lost: list[float], settings: GuardSettings) -> Detection:
    if (blocked := compared.blocked or 0.0) > BLOCKED:
        found, limit = f"{blocked:.0%} of it in parameters that get none", BLOCKED
    else:
        found = f"the gradient's error is {compared.gradient_error:.0%}"
        limit = settings.guard_underflow
    summary = (
        f"{lost[-1]:.0%} of the gradient's elements become zero in {compared.precision} and "
        f"{found}, in {len(lost)} comparisons in a row; the limit is {limit:.0%}"
    )
    numbers = {"underflows": lost, "limit": limit, "blocked": blocked}
    numbers["gradient_error"] = compared.gradient_error or 0.0
    return Detection(trigger=Trigger.UNDERFLOW, summary=summary, numbers=numbers)


def _slowdown(speedups: list[float], settings: GuardSettings) -> Detection:
    summary = (
        f"half precision runs at {median(speedups):.2f} of FP32's speed, the median of "
        f"{len(speedups)} comparisons; the limit is {settings.guard_min_speedup:g}"
    )
    numbers = {"speedups": speedups, "limit": settings.guard_min_speedup}
    return Detection(trigger=Trigger.SLOWER_THAN_FP32, summary=summary, numbers=numbers)


def detect_metric_drift(pairs: Sequence[RunPair], settings: GuardSettings) -> Detection | None:
    """Detect `Trigger.METRIC_DRIFT`: half precision is certainly worse by more than the limit.

    Runs differ by chance too. So the mean must be worse by more than the limit, and the
    difference must exceed what chance makes of such pairs once in 1000 times. A drift that is the
    same in every pair is detected with the fewest pairs.

    The *pairs* are ordered with the oldest first. The newest count, however many show a drift: a
    long history without one does not hide a new one.
    """
    known = [pair for pair in pairs if math.isfinite(pair.fp32)][-HISTORY_LIMIT:]
    for count in range(len(known), settings.guard_pairs - 1, -1):
        if (drift := _drift_of(known[-count:], settings.guard_metric_drift)) is not None:
            return drift
    return None


def _drift_of(known: Sequence[RunPair], limit: float) -> Detection | None:
    mean = fmean(pair.worse_by for pair in known)
    if not mean > limit:
        return None
    shares = [pair.worse_share for pair in known]
    student_t = _STUDENT_T[min(len(known) - 1, len(_STUDENT_T)) - 1]
    chance = student_t * stdev(shares) / math.sqrt(len(known))
    if not fmean(shares) > chance:
        return None
    how = f"{mean:.1%} worse than in FP32" if math.isfinite(mean) else "beyond comparison with FP32"
    metric = known[-1].metric
    return Detection(
        trigger=Trigger.METRIC_DRIFT,
        summary=f"in {len(known)} pairs of runs the held-out {metric} is {how}; "
        f"the limit is {limit:.1%}",
        numbers={
            "limit": limit,
            "pairs": [
                {"half_run": pair.half_run, "fp32_run": pair.fp32_run, "half": pair.half}
                | {"fp32": pair.fp32, "worse_by": pair.worse_by}
                for pair in known
            ],
        },
    )
