"""A worker that ends after its first training step and reports the CPU time of each phase.

Run by path, as ``python -P timed_worker.py AGENT_FOLDER worker SPEC`` or, for a pre-warmed worker,
``… spare PARENT_PID REPORT``. It calls the worker's own `main`; the functions that begin or end a
phase note the time. The report is a JSON object, phase to CPU seconds, in ``phases.json`` beside
the specification.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

_MARKS: list[tuple[str, float]] = []


def _mark(phase: str) -> None:
    """The *phase* ends now."""
    _MARKS.append((phase, time.process_time()))


def _around(owner: object, name: str, *, before: str = "", after: str = "") -> None:
    """End the phase *before* where ``owner.name`` is called, and *after* where it returns."""
    function: Callable[..., object] = getattr(owner, name)

    @functools.wraps(function)
    def timed(*args: object, **kwargs: object) -> object:
        if before:
            _mark(before)
        result = function(*args, **kwargs)
        if after:
            _mark(after)
        return result

    setattr(owner, name, timed)


def _time_phases() -> None:
    from genesis_fp16.worker import attempt, attempt_process, tasks
    from infrastructure.training import FP16Trainer
    from infrastructure.training.loop.auto_precision import AutoPrecision
    from infrastructure.world_model import fitting

    _around(attempt_process, "run_attempt", before="specification")
    _around(attempt, "load_agent", before="settings", after="plugin")
    _around(fitting, "prepare_training_data", before="records", after="encoding")
    _around(tasks, "check_fp32_step", before="network", after="check_fp32_step")
    _around(AutoPrecision, "resolve", before="first batch", after="preflight")
    _around(FP16Trainer, "train_batch", before="trainer", after="first step")
    step: Callable[..., object] = FP16Trainer.train_batch

    def last(*args: object, **kwargs: object) -> None:
        step(*args, **kwargs)
        _report()

    FP16Trainer.train_batch = last  # type: ignore[method-assign]


def _report() -> None:
    phases: dict[str, float] = {}
    for (_, began), (phase, ended) in pairwise(_MARKS):
        phases[phase] = phases.get(phase, 0.0) + ended - began
    spec = Path(sys.argv[1])
    spec.with_name("phases.json").write_text(json.dumps(phases))
    os._exit(0)


def main() -> None:
    """Be a worker, or a spare one, until the first step."""
    _, agent_folder, kind, *arguments = sys.argv
    sys.argv[1:] = arguments
    sys.path.append(agent_folder)
    _MARKS.append(("", 0.0))
    _mark("interpreter")
    if kind == "worker":
        from genesis_fp16.worker import __main__ as worker
        from genesis_fp16.worker.collector_pause import collector_paused

        with collector_paused():
            import torch  # noqa: F401

            _mark("torch")
            import genesis_fp16.worker.attempt_process  # noqa: F401

            _mark("library")
            import infrastructure.world_model_agent.publication  # noqa: F401

            _mark("plugin")
        _time_phases()
        worker.main()
    else:
        from genesis_fp16.worker import spare

        wait = spare.wait_for_run

        def timed_wait(report: int) -> Sequence[str]:
            _time_phases()
            found = wait(report)
            _MARKS[:] = [("", time.process_time())]
            return found

        spare.wait_for_run = timed_wait
        spare.main()


if __name__ == "__main__":
    main()
