"""``python -m benchmarks.telemetry``: the share of a training that telemetry and the guard take.

Models of the step benchmark train with the trainer's own step, and `TelemetryObserver` samples them
at the default interval. Before a trip the guard's `RungSearch` keeps the last batches. On a CPU all
times are CPU time of this process, which other processes hardly change.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring.machine import describe
from benchmarks.measuring.table import format_table
from benchmarks.step.models import SIZES, Size, build_batches, build_model
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.settings import Settings
from genesis_fp16.worker.rung import RungSearch
from infrastructure.agent_contract import Evaluation, Forward, TrainingJob
from infrastructure.events.event import BaseEvent, LostUpdatesMeasured, OverflowDiagnosed, StepStats
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision
from infrastructure.training.diagnostics import RepeatedPasses
from infrastructure.training.loop.telemetry import TelemetryObserver
from infrastructure.training.precision import resolve_device

Batch = Mapping[str, Tensor]

_WINDOW = 20  # steps between two readings, as in the loop
_IDLE_CALLS = 10_000
_COLUMNS = (
    "size",
    "precision",
    "steps",
    "step",
    "measurements",
    "one",
    "others",
    "standby",
    "share",
)


def squared_error(forward: Forward, batch: Batch) -> Tensor:
    """Return the mean squared error."""
    return nn.functional.mse_loss(forward(batch["x"]), batch["y"])


class TimedTelemetry:
    """Trains with telemetry and keeps its times apart from those of the steps.

    Attributes:
        events: Events that the observer has emitted.
        steps, step_seconds: Steps so far and their time.
    """

    def __init__(self, size: Size, precision: Precision, device: torch.device, seed: int) -> None:
        model = build_model(size, device, seed)
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        config = FP16TrainingConfig(precision=precision, cpu_half=True, loss_scale=1024.0)
        self._trainer = FP16Trainer(model, optimizer, config)
        x, y = build_batches(size, device, seed)[0]
        self._batch = {"x": x, "y": y}
        self._device = device
        self._clock: Callable[[], float] = (
            time.process_time if device.type == "cpu" else time.perf_counter
        )
        self.events: list[BaseEvent] = []
        interval = Settings.model_fields["telemetry_interval_steps"].default
        self._passes = RepeatedPasses(model, squared_error, device)
        self._observer = TelemetryObserver(
            self._passes, interval, self.events.append, clock=self._clock
        )
        self.steps, self.step_seconds = 0, 0.0

    def train(self, windows: int) -> None:
        """Train for so many *windows* of steps."""
        for _ in range(windows):
            seconds = self._train_window()
            self._observer.count(
                StepStats(
                    step=self.steps,
                    applied=_WINDOW,
                    seconds=seconds,
                    loss_scale=1.0,
                    precision=self._trainer.precision.value,
                )
            )
            self.step_seconds += seconds

    def _train_window(self) -> float:
        """Train for one window and return the seconds of the steps alone."""
        begun, spent = self._now(), self._observer.seconds
        for _ in range(_WINDOW):
            self._observer.before_step(self._trainer, self._batch)
            self._trainer.train_batch(self._batch, squared_error)
            self._observer.observe(self._trainer)
        self.steps += _WINDOW
        return self._now() - begun - (self._observer.seconds - spent)

    def idle_seconds(self) -> float:
        """Return the mean seconds that a step spends in the observer while none is affordable."""
        observer = TelemetryObserver(self._passes, 1, self.events.append)  # knows no step's time
        begun = self._clock()
        for _ in range(_IDLE_CALLS):
            observer.before_step(self._trainer, self._batch)
            observer.observe(self._trainer)
        return (self._clock() - begun) / _IDLE_CALLS

    def standby_seconds(self) -> float:
        """Return the mean seconds that a step spends in the guard's search before any trip."""
        job = TrainingJob(
            model=self._trainer.model,
            optimizer=torch.optim.AdamW,
            loss=squared_error,
            batches=lambda _epoch: [self._batch],
            evaluate=lambda _forward: Evaluation(
                metrics={"loss": 0.0}, primary="loss", higher_is_better=False
            ),
            epochs=1,
        )
        fields: dict[str, Any] = {"run_folder": Path("unused")}  # before a trip nothing is written
        search = RungSearch(RunSpec.model_construct(**fields), job, self.events.append)
        begun = self._clock()
        for _ in range(_IDLE_CALLS):
            search.keep(self._batch)
            search.observe(self._trainer)
        return (self._clock() - begun) / _IDLE_CALLS

    def diagnose(self) -> float:
        """Diagnose overflows, also one that the present batch reproduces.

        Returns:
            Seconds of the slowest diagnosis.
        """
        for scale in (1.0, 2.0**40):
            stats = StepStats(step=self.steps, overflow=1000, loss_scale=scale, precision="fp16")
            self._observer.count(stats)
            self._observer.before_step(self._trainer, self._batch)
            self._observer.observe(self._trainer)
        seconds = [each.seconds for each in self.events if isinstance(each, OverflowDiagnosed)]
        return max(seconds)

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()


def measure_share(
    name: str, precision: Precision, device: torch.device, *, steps: int, seed: int
) -> dict[str, str]:
    """Train one size in one precision; one row of the table."""
    timed = TimedTelemetry(SIZES[name], precision, device, seed)
    timed.train(-(-steps // _WINDOW))
    measured = [each for each in timed.events if isinstance(each, LostUpdatesMeasured)]
    step = timed.step_seconds / timed.steps
    spent, idle = sum(each.seconds for each in measured), timed.idle_seconds()
    standby = timed.standby_seconds()
    row = {
        "size": name,
        "precision": precision.value,
        "steps": str(timed.steps),
        "step": f"{1e3 * step:.2f} ms",
        "measurements": str(len(measured)),
        "diagnosis": "",
        "one": f"{spent / len(measured) / step:.1f} steps" if measured else "-",
        "others": f"{idle / step:.3%}",
        "standby": f"{standby / step:.3%}",
        "share": f"{spent / timed.step_seconds + (idle + standby) / step:.2%}",
    }
    if precision is Precision.FP16:
        row["diagnosis"] = f"{timed.diagnose() / step:.0f} steps"
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a row for each size and precision."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["tiny", "small"])
    parser.add_argument("--steps", type=int, default=3000, help="optimizer steps of each training")
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and data")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    device = resolve_device(options.device)
    machine = describe(device)
    print(f"{machine['device']}, torch {machine['torch']}")
    rows = []
    for name in options.sizes:
        for precision in Precision:
            if device.type == "cpu" and precision is Precision.FP16 and not SIZES[name].cpu_fp16:
                continue  # emulated: the figure would mean nothing
            rows.append(
                measure_share(name, precision, device, steps=options.steps, seed=options.seed)
            )
    print(format_table(rows, (*_COLUMNS, "diagnosis")))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
