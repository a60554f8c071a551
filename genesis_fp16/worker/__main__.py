"""One attempt of one run, in a process of its own: collect, train, publish.

``python -m genesis_fp16.worker SPEC`` reads one file, reports events into another and obeys
commands on stdin, whose end means that the daemon is gone. It exits with 0 when everything is
done, 75 when it has stopped and wants to go on later, 78 when no retry can help, 1 otherwise.

As one of several ranks, each started with ``SPEC AGENT_PID`` by `worker_group`, it trains with
the others; rank 0 alone hears, speaks, collects and publishes.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from pathlib import Path
from types import FrameType

import torch
import torch.distributed as dist

from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.plugins.loading import PluginRefusedError
from genesis_fp16.system.processes import die_with, keep_orphans
from genesis_fp16.worker.attempt import Attempt, WrongDeviceError
from genesis_fp16.worker.channel import CommandInbox, Emit, configure_worker_logging
from genesis_fp16.worker.exit_report import leave, print_traceback, why_failed
from genesis_fp16.worker.ranks import StoppedError
from infrastructure.events import EventWriter
from infrastructure.events.command import Stop
from infrastructure.events.event import BaseEvent, Finished
from infrastructure.training.diagnostics.fp32_check import HalfPrecisionInModelError


def _finish(attempt: Attempt, spec: RunSpec) -> Finished:
    """Run the attempt and say how it ended; whatever the plugin raises is not success."""
    try:
        return Finished(outcome=attempt.run())
    except StoppedError:
        return Finished(outcome="stopped")
    except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
        print_traceback()
        wrong = isinstance(error, PluginRefusedError | WrongDeviceError | HalfPrecisionInModelError)
        if wrong:
            message = f"{spec.agent} cannot run: {error}"
        else:
            message = why_failed(error, spec, attempt.doing)
        if isinstance(error, torch.OutOfMemoryError):
            message += "; train smaller batches, or set GENESIS_DEVICE=cpu"
        return Finished(outcome="misconfigured" if wrong else "failed", error=message)


def main() -> None:
    """Run the attempt that the file named by the first argument describes, or a rank of it."""
    faulthandler.enable()
    keep_orphans()
    configure_worker_logging()
    spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    rank = None
    if len(sys.argv) > 2:
        die_with(int(sys.argv[2]))
        rank = dist.get_node_local_rank()
    last = spec.events_path if rank is None else spec.last_words_path(rank)
    with EventWriter(spec.events_path) as events, EventWriter(last) as tell_end:
        emit: Emit = events if not rank else _discard
        inbox = CommandInbox(emit, listens=not rank)

        def stop(number: int, _frame: FrameType | None) -> None:
            inbox.put(Stop(reason=signal.Signals(number).name))

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        finished = _finish(Attempt(spec, emit, inbox), spec)
        code = EXIT_CODES[finished.outcome]
        if rank is not None and finished.outcome == "stopped":
            code = 0  # else torchrun takes it for a failure, and so for the others' end
        try:
            tell_end(finished)
        except OSError:  # a full disk: without its last event the attempt does not count as done
            print_traceback()
            code = code or 1
    leave(code)


def _discard(_event: BaseEvent) -> None:
    """Only rank 0 has something to say."""


if __name__ == "__main__":
    main()
