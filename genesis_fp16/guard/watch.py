"""One agent under the guard's eyes: its workers' events in, findings out. Pure."""

from __future__ import annotations

from collections import deque

from genesis_fp16.domain.guard import Finding, GuardSettings, Trigger
from genesis_fp16.guard.comparisons import Comparisons
from genesis_fp16.guard.overflow_windows import OverflowWindows, Scaling
from infrastructure.events import Event
from infrastructure.events.event import (
    BaselineCompared,
    CheckpointSaved,
    PrecisionChanged,
    Started,
    StepStats,
)

_KEPT_EVENTS = 50


class Watch:
    """What the guard has seen of one agent since it last decided something.

    Attributes:
        run_id: Of the run under way or the last.
        step: Steps attempted in it.
        half_steps: Steps seen in half precision.
    """

    def __init__(self) -> None:
        self.run_id, self.step, self._device = "", 0, "cpu"
        self._checkpoint: CheckpointSaved | None = None
        self.forget()

    def forget(self) -> None:
        """Begin anew: what was seen has led to a decision."""
        self.half_steps = 0
        self._windows, self._comparisons = OverflowWindows(), Comparisons()
        self._recent: deque[StepStats] = deque(maxlen=_KEPT_EVENTS)
        self._compared: deque[BaselineCompared] = deque(maxlen=_KEPT_EVENTS)

    def take(
        self,
        run_id: str,
        event: Event,
        settings: GuardSettings,
        *,
        strict: bool,
        scaling: Scaling,
    ) -> Finding | None:
        """Take in what a worker said; return what speaks against half precision.

        Args:
            run_id: Of the worker's run.
            event: What it said.
            settings: Hold the limits.
            strict: On probation, less is enough.
            scaling: Of the loss, in attempts that begin now.
        """
        if run_id != self.run_id:
            self.run_id, self.step, self._checkpoint = run_id, 0, None
        match event:
            case Started():
                self._device = event.device
            case PrecisionChanged():
                if event.state.effective == "fp16":
                    self._windows.begin(event.loss_scale, scaling)
            case CheckpointSaved():
                self._checkpoint = event
            case StepStats():
                self.step = event.step
                if event.precision != "fp32":
                    return self._take_steps(event, settings, strict=strict)
            case BaselineCompared():
                self._compared.append(event)
                accelerator = not self._device.startswith("cpu")
                return self._comparisons.add(event, settings, accelerator=accelerator)
            case _:
                pass
        return None

    def _take_steps(
        self, stats: StepStats, settings: GuardSettings, *, strict: bool
    ) -> Finding | None:
        self.half_steps += stats.attempted_in_half
        self._recent.append(stats)
        losses = stats.consecutive_nonfinite_losses
        if losses >= settings.guard_nonfinite_losses:
            limit = settings.guard_nonfinite_losses
            return Finding(
                trigger=Trigger.NONFINITE_LOSS,
                said=f"{losses} losses in a row were not finite in {stats.precision}; "
                f"the limit is {limit}",
                numbers={"consecutive": losses, "limit": limit},
            )
        return self._windows.add(stats, settings, strict=strict)

    def seen(self) -> dict[str, object]:
        """What led up to now, for the evidence: statistics, scales, modules, checkpoint."""
        last = list(self._compared)[-1:]
        modules = [name for each in last for name in (each.nonfinite_module, each.worst_module)]
        return {
            "device": self._device,
            "half_steps": self.half_steps,
            "statistics": [stats.model_dump(mode="json") for stats in self._recent],
            "comparisons": [each.model_dump(mode="json") for each in self._compared],
            "offending_modules": sorted({name for name in modules if name}),
            "checkpoint": self._checkpoint.model_dump(mode="json") if self._checkpoint else None,
        }
