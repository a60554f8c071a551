"""Where the time of some steps of a real run goes: a trace, and a table of phases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from infrastructure.events.event import BaseEvent, Notice
from infrastructure.training.diagnostics.marked_calls import MarkedCalls

_FIRST_STEPS = 5  # make optimizer state, and a CUDA graph if one is wanted
_STEP = {"train_batch": "step"}
_PHASES = {  # phase by the trainer's attribute that runs it
    "training_step": "forward",
    "_backward": "backward",
    "finish_window": "optimizer",
}


class _Profiled(Protocol):
    """An `FP16Trainer`; this folder does not import it."""

    device: torch.device


class StepProfile:
    """Profiles a few optimizer steps of a training, once; costs the others nothing.

    Leaves ``trace.json``, for Perfetto or ``chrome://tracing``, and ``phases.txt`` in its folder.
    Steps that a CUDA graph takes have no phases: there is one launch.

    Args:
        steps: Optimizer steps to profile, after the first few.
        folder: Made if it is missing.
        emit: Receives the phases' times, or the reason there are none.
        stepper: Object whose ``train_batch`` takes the steps: the trainer or its wrapper.
        trainers: Trainers of the parts of the job, whose calls are its phases.

    Attributes:
        interval_steps: 1: an observer of every step.
    """

    interval_steps = 1

    def __init__(
        self,
        steps: int,
        folder: Path,
        emit: Callable[[BaseEvent], None],
        stepper: object,
        trainers: Sequence[object],
    ) -> None:
        self._steps, self._folder, self._emit = steps, folder, emit
        self._stepper, self._trainers = stepper, trainers
        self._seen = 0
        self._profile: profile | None = None
        self._marked: list[MarkedCalls] = []

    def observe(self, trainer: _Profiled) -> None:
        """Start after the first steps; finish when the wanted number has been seen."""
        self._seen += 1
        if self._seen == _FIRST_STEPS:
            self._start(trainer)
        elif self._seen == _FIRST_STEPS + self._steps:
            self.finish()

    def _start(self, trainer: _Profiled) -> None:
        cuda = [ProfilerActivity.CUDA] if trainer.device.type == "cuda" else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *cuda], profile_memory=True)
        self._marked = [
            MarkedCalls(self._stepper, _STEP, record_function),
            *(MarkedCalls(part, _PHASES, record_function) for part in self._trainers),
        ]
        self._profile.start()

    def finish(self) -> None:
        """Write the profile so far, if profiling is under way; waits for the device."""
        if self._profile is None:
            return
        done, self._profile = self._profile, None
        for marked in self._marked:
            marked.remove()
        done.stop()
        steps = self._seen - _FIRST_STEPS
        if steps == 0:
            problem = "the training ended before the first profiled step did"
            self._emit(Notice.warning("profile_not_written", problem))
            return
        times = _times(done)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            done.export_chrome_trace(str(self._folder / "trace.json"))
            (self._folder / "phases.txt").write_text(_table(done, times, steps))
        except OSError as error:  # a full disk must not end a training
            self._emit(Notice.warning("profile_not_written", error))
            return
        means = ", ".join(f"{name} {1e-3 * host / steps:.3f} ms" for name, host, _ in times)
        fields = {"folder": str(self._folder), "steps": str(steps), "host_time_per_step": means}
        self._emit(Notice(event="profile_written", fields=fields))


def _times(done: profile) -> list[tuple[str, float, float]]:
    """Phase, total microseconds on host and on device; only phases that occurred."""
    events = {event.key: event for event in done.key_averages()}
    return [
        (phase, events[phase].cpu_time_total, events[phase].device_time_total)
        for phase in (_STEP | _PHASES).values()
        if phase in events
    ]


def _table(done: profile, times: list[tuple[str, float, float]], steps: int) -> str:
    lines = [
        f"Milliseconds per optimizer step, mean of {steps}; step includes the others.",
        "",
        f"{'phase':<12}{'host':>12}{'device':>12}",
    ]
    for phase, host, device in times:
        lines.append(f"{phase:<12}{1e-3 * host / steps:>12.3f}{1e-3 * device / steps:>12.3f}")
    device_first = any(device for _, _, device in times)
    by = "self_device_time_total" if device_first else "self_cpu_time_total"
    operations = done.key_averages().table(sort_by=by, row_limit=20)
    return "\n".join([*lines, "", operations, ""])
