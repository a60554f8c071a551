"""Where the time of some steps of a real run goes: a trace, and a table of phases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile, record_function

from infrastructure.events.event import BaseEvent, Notice
from infrastructure.training.fp16_trainer import FP16Trainer

_FIRST_STEPS = 5  # make optimizer state, and a CUDA graph if one is wanted
_PHASES = {  # by what of the trainer they are
    "train_batch": "step",
    "training_step": "forward",
    "_backward": "backward",
    "finish_window": "optimizer",
}


class StepProfile:
    """Profiles a few optimizer steps of a training, once; costs the others nothing.

    Leaves ``trace.json``, for Perfetto or ``chrome://tracing``, and ``phases.txt`` in its folder.
    Steps that a CUDA graph takes have no phases: there is one launch.

    Args:
        steps: Optimizer steps to profile, after the first few.
        folder: Made if it is missing.
        emit: Is told the phases' times, or why there are none.

    Attributes:
        interval_steps: 1: an observer of every step.
    """

    interval_steps = 1

    def __init__(self, steps: int, folder: Path, emit: Callable[[BaseEvent], None]) -> None:
        self._steps, self._folder, self._emit = steps, folder, emit
        self._seen = 0
        self._profile: profile | None = None

    def observe(self, trainer: FP16Trainer) -> None:
        """Begin after the first steps, and end when all that are wanted have been seen."""
        self._seen += 1
        if self._seen == _FIRST_STEPS:
            self._begin(trainer)
        elif self._seen == _FIRST_STEPS + self._steps:
            self.finish()

    def _begin(self, trainer: FP16Trainer) -> None:
        cuda = [ProfilerActivity.CUDA] if trainer.device.type == "cuda" else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *cuda], profile_memory=True)
        self._marked = _MarkedPhases(trainer)
        self._profile.start()

    def finish(self) -> None:
        """Write what there is, if profiling is under way; waits for the device."""
        if self._profile is None:
            return
        done, self._profile = self._profile, None
        self._marked.remove()
        done.stop()
        steps = self._seen - _FIRST_STEPS
        if steps == 0:
            self._refuse("the training ended before the first step to be profiled did")
            return
        times = _times(done)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(self._folder / "trace.json"))
            (self._folder / "phases.txt").write_text(_table(done, times, steps))
        except OSError as error:  # nobody must lose a training to a full disk
            self._refuse(str(error))
            return
        means = ", ".join(f"{name} {1e-3 * host / steps:.3f} ms" for name, host, _ in times)
        fields = {"folder": str(self._folder), "steps": str(steps), "host_time_per_step": means}
        self._emit(Notice(event="profile_written", fields=fields))

    def _refuse(self, error: str) -> None:
        fields = {"error": error}
        self._emit(Notice(level="warning", event="profile_not_written", fields=fields))


class _MarkedPhases:
    """Makes the trainer's own calls show in a profile, until they are `remove`d."""

    def __init__(self, trainer: FP16Trainer) -> None:
        self._attributes = vars(trainer)
        self._before = {name: self._attributes.get(name) for name in _PHASES}
        for name, phase in _PHASES.items():
            self._attributes[name] = _marked(phase, getattr(trainer, name))

    def remove(self) -> None:
        for name, before in self._before.items():
            if before is None:
                del self._attributes[name]
            else:
                self._attributes[name] = before


def _marked(phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: object, **kwargs: object) -> object:
        with record_function(phase):
            return call(*args, **kwargs)

    return marked


def _times(done: profile) -> list[tuple[str, float, float]]:
    """Phase, and microseconds of host and device in all; those that there were."""
    events = {event.key: event for event in done.key_averages()}
    return [
        (phase, events[phase].cpu_time_total, events[phase].device_time_total)
        for phase in _PHASES.values()
        if phase in events
    ]


def _table(done: profile, times: list[tuple[str, float, float]], steps: int) -> str:
    lines = [
        f"Milliseconds per optimizer step, mean of {steps}; step holds the others.",
        "",
    ]
    lines.append(f"{'phase':<12}{'host':>12}{'device':>12}")
    for phase, host, device in times:
        lines.append(f"{phase:<12}{1e-3 * host / steps:>12.3f}{1e-3 * device / steps:>12.3f}")
    device_first = any(device for _, _, device in times)
    by = "self_device_time_total" if device_first else "self_cpu_time_total"
    operations = done.key_averages().table(sort_by=by, row_limit=20)
    return "\n".join([*lines, "", operations, ""])
