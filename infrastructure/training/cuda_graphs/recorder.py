"""Recording CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch


class Recorder(Protocol):
    """Records a step so that it can be repeated."""

    def run(self, step: Callable[[], None]) -> None:
        """Run *step* eagerly, under the conditions in which it will be recorded."""

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record the operations of *step* without running them; return a function that does."""


class CudaRecorder:
    """Records CUDA graphs on one side stream; they share memory, since only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()

    def run(self, step: Callable[[], None]) -> None:
        """Run *step* on the side stream, in order with the work of the current stream."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            step()
        current.wait_stream(self._stream)

    def record(self, step: Callable[[], None]) -> Callable[[], None]:
        """Record *step*; waits for the device.

        Raises:
            Exception: An exception of *step*, or a RuntimeError of CUDA's.
        """
        graph = torch.cuda.CUDAGraph()
        # The outer stream context: torch.cuda.graph leaves its own open where the recording fails.
        # thread_local: other threads, such as a data loader's that pins memory, are not affected.
        with (
            torch.cuda.stream(self._stream),
            _no_garbage_collection(),
            torch.cuda.graph(
                graph,
                pool=self._pool,
                stream=self._stream,
                capture_error_mode="thread_local",
            ),
        ):
            step()
        return graph.replay


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep CUDA objects from being destroyed inside the block."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
