"""Sixteen small models in one step, on the GPU: bits, calls of the optimizer's kernel, time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.fleet.__main__ import require_equal
from benchmarks.fleet.loops import InAFleet, Loop, OneByOne
from benchmarks.fleet.models import Subject, subjects
from benchmarks.gpu.section import Task
from benchmarks.measuring.spread import Spread
from benchmarks.measuring.timing import interleave, seconds_of
from infrastructure.training import Precision

_MEMBERS, _QUICK_MEMBERS = 16, 2
_WARM_UP_STEPS, _STEPS = 3, 8


def run(task: Task) -> None:
    """Train perceptrons and world models alone and in a fleet."""
    members = _QUICK_MEMBERS if task.quick else _MEMBERS
    plain, *_, world = subjects()[:4]
    calls, lines, differing = 0, [], []
    for subject in (plain, world):
        alone = OneByOne(subject, members, Precision.FP32, task.device)
        fleet = InAFleet(subject, members, Precision.FP32, task.device)
        for loop in (alone, fleet):
            _run(loop, _WARM_UP_STEPS)
        lines.append(_time(task, subject, alone, fleet))
        with _KernelCalls() as counter:
            fleet.step()
        alone.step()
        if subject is plain:
            calls = counter.calls
        try:
            require_equal(alone, fleet)
        except RuntimeError as error:
            differing.append(f"{subject.name}: {error}")
    task.findings.show("\n".join(lines))
    task.findings.decide(
        "fleet-bits",
        holds=not differing,
        measured="; ".join([*differing, *lines]),
    )
    if not task.on_cuda:
        task.findings.cannot("fleet-adam", "it is about CUDA, and this device is a CPU")
        return
    task.findings.decide(
        "fleet-adam",
        holds=calls == members,
        measured=f"{calls} calls of the fused kernel in a step of {members} members",
        calls=calls,
    )


def _time(task: Task, subject: Subject, alone: OneByOne, fleet: InAFleet) -> str:
    loops: dict[str, Loop] = {"alone": alone, "fleet": fleet}
    blocks = {
        name: partial(seconds_of, partial(_run, loop, _STEPS), task.device)
        for name, loop in loops.items()
    }
    costs = interleave(blocks, 2 if task.quick else 7, seed=0)
    ratio = Spread.of([cost["alone"] / cost["fleet"] for cost in costs])
    together = fleet.fleet.alone
    how = f"stepped alone: {next(iter(together.values()))}" if together else "stepped together"
    return (
        f"{subject.name}: one by one ÷ fleet {ratio.median:.2f} "
        f"(quartiles {ratio.low:.2f} to {ratio.high:.2f}), {how}"
    )


def _run(loop: Loop, steps: int) -> None:
    for _ in range(steps):
        loop.step()


class _KernelCalls(TorchDispatchMode):
    """Counts calls of the fused kernel of Adam."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(
        self,
        func: OpOverload[..., object],
        types: Collection[type],
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        self.calls += "_fused_adam" in func.name()
        return func(*args, **(kwargs or {}))
