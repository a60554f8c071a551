"""Several attempts in one process: each collects, trains and publishes as if it were alone.

``python -m genesis_fp16.worker.fleet SPEC…`` reads one specification for each attempt. Every
attempt has its own events, checkpoints and outcome; a command on stdin names the attempt by its
incarnation. Steps of models of one shape are taken together where that is faster; collecting,
evaluating and publishing of one attempt happen while the others wait. An error ends its attempt
alone. Only the end of the process, such as a crash, ends all of them.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import torch
from pydantic import ValidationError

from genesis_fp16.domain.run import Outcome
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.system.processes import become_subreaper
from genesis_fp16.worker.attempt_runner import AttemptRunner
from genesis_fp16.worker.channel import (
    CommandInbox,
    configure_worker_logging,
    listen,
    rejection,
    take_stdin,
)
from genesis_fp16.worker.compiler_import import defer_compiler_import
from genesis_fp16.worker.exit_report import drop_output_on_full_disk, exit_process
from genesis_fp16.worker.outcome import finished_by
from infrastructure.events import Command, EventWriter
from infrastructure.events.command import AttemptCommand, Stop
from infrastructure.events.event import Finished, Notice
from infrastructure.fleet import Ended, Standing, Trainings
from infrastructure.training.inputs import preserved_generators


class HostedAttempt:
    """One of the attempts in this process.

    Args:
        spec: Its specification.
        beside: Number of attempts in this process.

    Attributes:
        finished: Its last event; None while it goes on.
    """

    def __init__(self, spec: RunSpec, beside: int) -> None:
        self.spec = spec
        self.events = EventWriter(spec.events_path)
        self.inbox = CommandInbox(self.events)
        self.runner = AttemptRunner(spec, self.events, self.inbox, trained_together=beside)
        self.finished: Finished | None = None

    def end(self, finished: Finished) -> None:
        """Emit its last event."""
        if finished.error:
            sys.stderr.write(f"{finished.error}\n")  # the log is one for all attempts
        self.events(finished)
        self.finished = finished

    def end_with(self, ended: Ended[Outcome]) -> None:
        """Emit its last event after its training has *ended*."""
        if ended.error is not None:
            self.end(finished_by(ended.error, self.runner, self.spec))
        elif ended.result is not None:
            self.end(Finished(outcome=ended.result))

    def wait_until_written(self) -> None:
        """Wait for room on the disk, unless the attempt can be resumed."""
        if self.finished is not None and self.finished.outcome not in ("stopped", "disk_full"):
            self.inbox.wait_until_written(self.events)


class Commands:
    """Passes each command on to the attempt that it names, and the end of stdin to all."""

    def __init__(self, attempts: Sequence[HostedAttempt]) -> None:
        self._attempts = {each.spec.incarnation: each for each in attempts}

    def receive(self, line: bytes) -> None:
        """Obey *line*; a command for an attempt that has ended comes too late."""
        try:
            named = AttemptCommand.model_validate_json(line)
        except ValidationError as error:
            for attempt in self._under_way():
                attempt.events(rejection(line, error))
            return
        if (found := self._attempts.get(named.incarnation)) is not None:
            found.inbox.put(named.command)

    def put(self, command: Command) -> None:
        """Pass *command* on to every attempt."""
        for attempt in self._attempts.values():
            attempt.inbox.put(command)

    def _under_way(self) -> list[HostedAttempt]:
        return [each for each in self._attempts.values() if each.finished is None]


def run_attempts(attempts: Sequence[HostedAttempt]) -> None:
    """Run every attempt to its end; its last event says how it ended."""
    by_name = {each.spec.incarnation: each for each in attempts}

    def tell(name: str, standing: Standing) -> None:
        fields = {"with_others": str(standing.with_others), "reason": standing.reason}
        by_name[name].events(Notice(level="info", event="fleet_changed", fields=fields))

    trainings: Trainings[Outcome] = Trainings(tell)
    for name, attempt in by_name.items():
        with preserved_generators(torch.device("cpu")):
            try:
                attempt.runner.start()
            except BaseException as error:  # a plugin may raise SystemExit or KeyboardInterrupt
                attempt.end(finished_by(error, attempt.runner, attempt.spec))
            else:
                trainings.add(name, attempt.runner.steps())
    while len(trainings):
        for name, ended in trainings.advance().items():
            by_name[name].end_with(ended)
        for attempt in attempts:
            if attempt.finished is not None:
                attempt.events.flush()  # a full disk may have room now
    for attempt in attempts:
        attempt.wait_until_written()


def main() -> None:
    """Run the attempts that the files named by the arguments describe."""
    faulthandler.enable()
    become_subreaper()
    drop_output_on_full_disk()
    configure_worker_logging()
    defer_compiler_import()
    specs = [RunSpec.model_validate_json(Path(path).read_bytes()) for path in sys.argv[1:]]
    attempts = [HostedAttempt(spec, len(specs)) for spec in specs]
    commands = Commands(attempts)

    def stop(number: int, _frame: FrameType | None) -> None:
        commands.put(Stop(reason=signal.Signals(number).name))

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    listen(take_stdin(), commands)
    run_attempts(attempts)
    written = all(attempt.events.flush() for attempt in attempts)
    exit_process(os.EX_OK if written else os.EX_TEMPFAIL)


if __name__ == "__main__":
    main()
