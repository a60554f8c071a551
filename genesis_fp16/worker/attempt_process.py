"""One attempt of one run, in a process of its own: collect, train, publish.

``python -m genesis_fp16.worker SPEC`` reads its specification from one file, appends events to
another and obeys commands on stdin; the end of stdin means that the daemon is gone. The exit code
is 0 when everything is done, 75 when the attempt was stopped, or the disk was full, and it can be
resumed, 78 when no retry can help, and 1 otherwise.

A full disk does not end a training: events wait in memory, the last checkpoint stays, and once too
many events wait, the worker pauses until there is room. Commands are obeyed meanwhile. Only if
plugin code cannot write its data, or the worker is stopped while events wait, does the attempt end.

As one of several ranks, each started with ``SPEC PARENT_PID`` by `genesis_fp16.worker.group`, it
trains with the others. Only rank 0 reads commands, emits events, collects and publishes.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

import torch.distributed as dist

from genesis_fp16.domain.run import EXIT_CODES
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.system.processes import become_subreaper, die_with_parent
from genesis_fp16.worker.channel import (
    CommandInbox,
    Emit,
    configure_worker_logging,
    listen,
    take_stdin,
)
from genesis_fp16.worker.exit_report import drop_output_on_full_disk, exit_process
from genesis_fp16.worker.outcome import run_attempt
from genesis_fp16.worker.preemption import watch
from infrastructure.events import EventWriter
from infrastructure.events.command import Stop
from infrastructure.events.event import BaseEvent, Notice
from infrastructure.torch_internals.compiler_import import defer_compiler_import


def main() -> None:
    """Run the attempt that the file named by the first argument describes, or a rank of it."""
    faulthandler.enable()
    become_subreaper()
    drop_output_on_full_disk()
    configure_worker_logging()
    defer_compiler_import()
    spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
    rank = None
    if len(sys.argv) > 2:
        die_with_parent(int(sys.argv[2]))
        rank = dist.get_node_local_rank()
    with EventWriter(spec.events_path) as events:
        emit: Emit = events if not rank else _discard
        signalled: SimpleQueue[str] = SimpleQueue()  # a handler may not write events
        commands, inbox = take_stdin(), CommandInbox(events)
        if rank:
            os.close(commands)  # several ranks share one stdin, and rank 0 reads it
        else:
            listen(commands, inbox)

        def stop(number: int, _frame: FrameType | None) -> None:
            if number == signal.SIGUSR1 and not rank:
                signalled.put("preempted: SIGUSR1 announces that the machine is taken away")
            else:
                inbox.put(Stop(reason=signal.Signals(number).name))

        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, stop)
        if not rank:
            leave = partial(_leave, events, inbox)
            threading.Thread(target=lambda: leave(signalled.get()), daemon=True).start()
            watch(spec.preemption_file, spec.preemption_url, leave)
        finished = run_attempt(spec, emit, inbox)
        code = EXIT_CODES[finished.outcome]
        if rank is not None and finished.outcome in ("stopped", "no_data"):
            code = 0  # torchrun would take any other code for a failure and end the other ranks
        exit_report = events if rank is None else EventWriter(spec.exit_report_path(rank))
        exit_report(finished)
        waits = not rank and finished.outcome not in ("stopped", "disk_full")
        written = inbox.wait_until_written(events, exit_report) if waits else exit_report.flush()
        if not written:  # without its last event the attempt does not count as done
            code = code or os.EX_TEMPFAIL
    exit_process(code)


def _leave(events: EventWriter, inbox: CommandInbox, notice: str) -> None:
    """Checkpoint and end: the machine will be taken away."""
    remedy = "the run goes on from its checkpoint elsewhere"
    events(
        Notice(
            level="warning",
            event="preemption_noticed",
            fields={"notice": notice, "consequence": remedy},
        )
    )
    inbox.put(Stop(reason=notice))


def _discard(_event: BaseEvent) -> None:
    """Only rank 0 emits events."""
