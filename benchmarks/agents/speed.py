"""Steps per second of CPU time, alone and in a fleet, and the memory that a training takes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch

from benchmarks.agents.subjects import Subject
from benchmarks.agents.training import CPU, Effort, build_job
from benchmarks.measuring.timing import interleave, seconds_of
from infrastructure.agent_contract.training_job import Batch
from infrastructure.events.precision_state import PrecisionName
from infrastructure.fleet import Fleet, FleetMember
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision

_BATCHES = 8  # of each agent; a loop cycles through them
_WARM_UP_STEPS = 3
_FLEET = "fleet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Speed:
    """Steps per second of CPU time, alone and in a fleet.

    Attributes:
        alone: Steps of each agent per second of CPU time, with nothing else in the process.
        together: Steps of its members that a fleet takes per second of CPU time.
        stepped_alone: Reason why the fleet steps a member alone, by name.
        parameters: Number of each agent's parameters.
    """

    alone: Mapping[str, float]
    together: float
    stepped_alone: Mapping[str, str]
    parameters: Mapping[str, int]


class Member:
    """An agent's job, its trainer and its first batches."""

    def __init__(self, subject: Subject, precision: PrecisionName, effort: Effort) -> None:
        job = build_job(subject, subject.context("speed", 0), effort)
        self._loss, self._generator = job.loss, torch.Generator().manual_seed(0)
        batches = iter(job.batches(0))
        self._batches = [next(batches) for _ in range(min(_BATCHES, len(list(job.batches(0)))))]
        self.trainer = FP16Trainer(
            job.model,
            job.optimizer(job.model.parameters()),
            FP16TrainingConfig(precision=Precision(precision), cpu_half=True),
        )
        self._steps = 0

    def batch(self) -> Batch:
        """The next batch."""
        self._steps += 1
        return self._batches[self._steps % len(self._batches)]

    def step(self) -> None:
        """Take one step alone."""
        self.trainer.train_batch(self.batch(), self._loss)

    def join(self, fleet: Fleet, name: str) -> None:
        """Join *fleet*."""
        member = FleetMember(trainer=self.trainer, loss=self._loss, generator=self._generator)
        fleet.join(name, member)


class Together:
    """Agents in one fleet.

    Raises:
        Exception: What a member's step raised.
    """

    def __init__(
        self, subjects: Sequence[Subject], precision: PrecisionName, effort: Effort
    ) -> None:
        self._members = {each.name: Member(each, precision, effort) for each in subjects}
        self.fleet = Fleet()
        for name, member in self._members.items():
            member.join(self.fleet, name)

    def step(self) -> None:
        """Take one step of every member."""
        batches = {name: member.batch() for name, member in self._members.items()}
        for error in self.fleet.step(batches).values():
            raise error


def speed_columns(
    subjects: Sequence[Subject], effort: Effort, *, rounds: int, steps: int
) -> dict[str, dict[str, str]]:
    """Parameters, memory and speed in FP32 of each agent, by name; print those of the fleet."""
    memory = {
        each.name: peak_mebibytes(partial(train_some, [each], "fp32", effort, 5))
        for each in subjects
    }
    in_fleet = peak_mebibytes(partial(train_some, subjects, "fp32", effort, 5))
    print(
        f"memory that the trainings add to a process: {in_fleet:.0f} MiB in one fleet, "
        f"{sum(memory.values()):.0f} MiB as the sum over processes of their own"
    )
    speed = measure_speed(subjects, "fp32", effort, rounds=rounds, steps=steps)
    in_the_fleet = dict.fromkeys(speed.stepped_alone, "stepped alone")
    for name, reason in speed.stepped_alone.items():
        print(f"{name} is stepped alone in the fleet: {reason}")
    if stacked := [each for each in subjects if each.name not in speed.stepped_alone]:
        together = measure_speed(stacked, "fp32", effort, rounds=rounds, steps=steps).together
        one_by_one = len(stacked) / sum(1.0 / speed.alone[each.name] for each in stacked)
        in_the_fleet |= {each.name: f"{together:.0f}" for each in stacked}
        print(
            f"{len(stacked)} stacked agents: {together:.1f} steps/s of CPU time together, "
            f"{one_by_one:.1f} one after the other",
            flush=True,
        )
    return {
        name: {
            "parameters": str(speed.parameters[name]),
            "MiB": f"{memory[name]:.0f}",
            "steps/s alone": f"{speed.alone[name]:.0f}",
            "steps/s in the fleet": in_the_fleet[name],
        }
        for name in speed.alone
    }


def measure_speed(
    subjects: Sequence[Subject],
    precision: PrecisionName,
    effort: Effort,
    *,
    rounds: int,
    steps: int,
) -> Speed:
    """Time blocks of *steps* of every agent alone, and of all in a fleet, interleaved.

    A batch is drawn before. The figures are medians over the rounds.
    """
    alone = {each.name: Member(each, precision, effort) for each in subjects}
    together = Together(subjects, precision, effort)
    runs: dict[str, Callable[[], None]] = {name: each.step for name, each in alone.items()}
    runs[_FLEET] = together.step
    for run in runs.values():
        _repeat(run, _WARM_UP_STEPS)
    blocks = {
        name: partial(seconds_of, partial(_repeat, run, steps), CPU) for name, run in runs.items()
    }
    costs = interleave(blocks, rounds, seed=0)
    seconds = {name: median(cost[name] for cost in costs) / steps for name in runs}
    return Speed(
        alone={name: 1.0 / seconds[name] for name in alone},
        together=len(subjects) / seconds[_FLEET],
        stepped_alone=together.fleet.alone,
        parameters={
            name: sum(p.numel() for p in each.trainer.model.parameters())
            for name, each in alone.items()
        },
    )


def _repeat(run: Callable[[], None], times: int) -> None:
    for _ in range(times):
        run()


def peak_mebibytes(work: Callable[[], None]) -> float:
    """Resident memory that *work* adds to a fork of this process, at most."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_report_peak, args=(work, sender))
    process.start()
    sender.close()
    try:
        peak: float = receiver.recv()
    except EOFError:
        raise RuntimeError("the process whose memory was measured failed; see above") from None
    finally:
        process.join()
    return peak


def train_some(
    subjects: Sequence[Subject], precision: PrecisionName, effort: Effort, steps: int
) -> None:
    """Take *steps*; with several subjects in a fleet."""
    if len(subjects) == 1:
        _repeat(Member(subjects[0], precision, effort).step, steps)
    else:
        _repeat(Together(subjects, precision, effort).step, steps)


def _report_peak(work: Callable[[], None], sender: Connection) -> None:
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the past; see proc(5)
    before = _memory("VmHWM")
    work()
    sender.send(_memory("VmHWM") - before)
    sender.close()


def _memory(name: str) -> float:
    """A line of the process's status, in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {name}")
