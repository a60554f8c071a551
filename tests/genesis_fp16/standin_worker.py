"""A real process that speaks the worker's protocol without torch; the settings in its specification
say how it behaves. Started by tests in place of `genesis_fp16.worker`, or, with ``--fleet`` and
several specifications, of `genesis_fp16.worker.fleet`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue

from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import COMMAND_ADAPTER, EventWriter
from infrastructure.events.command import AttemptCommand, SetPrecision, Stop
from infrastructure.events.event import (
    Evaluated,
    Finished,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)


class EndedError(Exception):
    """An attempt has ended with an exit code."""


class Attempt:
    def __init__(self, path: str) -> None:
        self.spec = spec = RunSpec.model_validate_json(Path(path).read_bytes())
        self.how = spec.settings
        changed = spec.run_folder / "behaviour.json"  # from the next attempt on
        if changed.exists():
            self.how = json.loads(changed.read_text())
        self.emit = EventWriter(spec.events_path)
        self.commands: SimpleQueue = SimpleQueue()
        self.exit_code = 1

    def finish(self, outcome: str, code: int, error: str = "") -> None:
        self.emit(Finished(outcome=outcome, error=error))
        self.exit_code = code
        raise EndedError

    def train(self, total: int) -> None:
        """Count steps until *total*, obeying commands; go on where an earlier attempt stopped."""
        progress = self.spec.run_folder / "step"
        step = int(progress.read_text()) if progress.exists() else 0
        while step < total:
            step += 1
            self.emit(
                StepStats(step=step, total_steps=total, applied=1, loss_scale=1.0, precision="fp32")
            )
            try:
                command = self.commands.get(timeout=0.01)
            except Empty:
                continue
            if isinstance(command, Stop):
                progress.write_text(str(step))
                self.finish("stopped", 75)
            if isinstance(command, SetPrecision):
                self.emit(PrecisionChanged(step=step, state=command.state, loss_scale=1.0))

    def leave_descendants(self) -> None:
        """One in our process group, one in a session of its own; their pids go into a file."""
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        pids = [
            subprocess.Popen(sleep, stdin=subprocess.DEVNULL, start_new_session=apart).pid
            for apart in (False, True)
        ]
        folder = self.spec.attempt_folder
        (folder / "descendants.new").write_text(json.dumps(pids))
        (folder / "descendants.new").rename(folder / "descendants")

    def run(self) -> None:
        how, emit, spec = self.how, self.emit, self.spec
        sys.stdout.write("a line for the log\n")
        sys.stdout.flush()
        emit(Started(pid=os.getpid(), device="cpu", torch_version="none"))
        emit(PrecisionChanged(step=0, state=spec.precision, loss_scale=1.0))
        if "descendants" in how:
            self.leave_descendants()
        if "garbage" in how:
            with spec.events_path.open("ab") as file:
                file.write(b"no event\n")
        if "flood" in how:
            with spec.events_path.open("ab") as file:
                file.write((b"x" * 999 + b"\n") * how["flood"])
        if "hang" in how:
            time.sleep(600)
        if "exit" in how and spec.attempt <= how.get("failing_attempts", 1000):
            outcome = "misconfigured" if how["exit"] == 78 else "failed"
            self.finish(outcome, how["exit"], "it went wrong")
        if "kill" in how and spec.attempt == 1:
            os.kill(os.getpid(), how["kill"])
        self.train(how.get("steps", 3))
        emit(Evaluated(epoch=1, metrics={"mse": 0.5, "odd": float("nan")}, primary="mse"))
        emit(Published(published=True, reason="better", metrics={"base": 1.0}))
        self.finish("done", 0)


def listen(attempts: Sequence[Attempt], is_fleet: bool) -> None:
    by_incarnation = {each.spec.incarnation: each for each in attempts}
    for line in sys.stdin.buffer:
        if is_fleet:
            named = AttemptCommand.model_validate_json(line)
            by_incarnation[named.incarnation].commands.put(named.command)
        else:
            attempts[0].commands.put(COMMAND_ADAPTER.validate_json(line))
    for attempt in attempts:
        attempt.commands.put(Stop(reason="the daemon is gone"))


def run(attempt: Attempt) -> None:
    with suppress(EndedError):
        attempt.run()


def main(arguments: Sequence[str]) -> None:
    is_fleet = arguments[0] == "--fleet"
    attempts = [Attempt(path) for path in arguments[is_fleet:]]
    if any("no_start" in each.how for each in attempts):
        time.sleep(600)
    if any("ignore_all" in each.how for each in attempts):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(
            signal.SIGTERM,
            lambda *_: [each.commands.put(Stop(reason="SIGTERM")) for each in attempts],
        )
        threading.Thread(target=listen, args=(attempts, is_fleet), daemon=True).start()
    if not is_fleet:
        run(attempts[0])
        os._exit(attempts[0].exit_code)
    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
