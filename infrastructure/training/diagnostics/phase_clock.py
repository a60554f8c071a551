"""Seconds and memory of the phases of a run, each without the phases inside it."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from types import TracebackType

import torch

from infrastructure.training.diagnostics.marked_calls import MarkedCalls

_KIBIBYTE = 1024  # unit of ru_maxrss on Linux
_NOTHING: AbstractContextManager[None] = nullcontext()


@dataclass(slots=True)
class PhaseTime:
    """Time and memory of one phase.

    Attributes:
        count: How many times the phase was entered.
        wall_seconds, cpu_seconds: Spent in it, without phases inside it.
        peak_bytes, peak_cuda_bytes: Peak of the process until it ended; see `PhaseCost`.
    """

    count: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int | None = None
    peak_cuda_bytes: int | None = None


class PhaseClock:
    """Charges every moment of one thread to the innermost phase that is open.

    A call costs about 2 microseconds. Work that a CUDA device still has to do is charged to the
    phase that waits for it.

    Args:
        wall, cpu: Clocks in seconds; by default the CPU time of the process and of its children
            that have ended.
    """

    def __init__(
        self,
        wall: Callable[[], float] = time.perf_counter,
        cpu: Callable[[], float] | None = None,
    ) -> None:
        self._wall, self._cpu = wall, cpu or cpu_seconds
        self._open: list[PhaseTime] = []
        self._phases: dict[str, PhaseTime] = {}
        self._since = (0.0, 0.0)

    def enter(self, phase: str) -> None:
        """Open *phase* inside the one that is open, if any."""
        self._charge()
        entered = self._phases.setdefault(phase, PhaseTime())
        entered.count += 1
        self._open.append(entered)

    def exit(self) -> None:
        """Close the innermost phase."""
        self._charge()
        self._open.pop()

    def _charge(self) -> None:
        wall, cpu = self._wall(), self._cpu()
        if self._open:
            innermost, (wall_before, cpu_before) = self._open[-1], self._since
            innermost.wall_seconds += wall - wall_before
            innermost.cpu_seconds += cpu - cpu_before
        self._since = (wall, cpu)

    def phase(self, name: str, *, memory: bool = False) -> AbstractContextManager[None]:
        """Region that is charged to *name*; with its peak of *memory* so far, on request."""
        return _Memory(self, name) if memory else _Region(self, name)

    def record_memory(self, phase: str) -> None:
        """Note how much memory the process has used at most, up to now."""
        time_ = self._phases[phase]
        time_.peak_bytes = peak_bytes()
        if torch.cuda.is_initialized():
            time_.peak_cuda_bytes = torch.cuda.max_memory_allocated()

    def mark(self, owner: object, phases: Mapping[str, str]) -> MarkedCalls:
        """Charge calls of *owner*'s methods, by name, to *phases*; `MarkedCalls.remove` ends it."""
        return MarkedCalls(owner, phases, self.phase)

    def take(self) -> dict[str, PhaseTime]:
        """Return what was measured since the last call; no phase may be open.

        Raises:
            RuntimeError: A phase is open.
        """
        if self._open:
            raise RuntimeError("a phase is open: close it first")
        taken, self._phases = self._phases, {}
        return taken

    @contextmanager
    def active(self) -> Iterator[None]:
        """Let `phase` in this thread charge to this clock inside the block."""
        token = _ACTIVE.set(self)
        try:
            yield
        finally:
            _ACTIVE.reset(token)


class _Region:
    def __init__(self, clock: PhaseClock, phase: str) -> None:
        self._clock, self._phase = clock, phase

    def __enter__(self) -> None:
        self._clock.enter(self._phase)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._clock.exit()


class _Memory(_Region):
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        super().__exit__(kind, error, traceback)
        self._clock.record_memory(self._phase)


_ACTIVE: ContextVar[PhaseClock | None] = ContextVar("active", default=None)


def phase(name: str) -> AbstractContextManager[None]:
    """Region that is charged to *name* if a run is being profiled; else it does nothing."""
    clock = _ACTIVE.get()
    return _NOTHING if clock is None else clock.phase(name)


def cpu_seconds() -> float:
    """CPU seconds of this process and of its children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_bytes() -> int:
    """Largest resident memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _KIBIBYTE
