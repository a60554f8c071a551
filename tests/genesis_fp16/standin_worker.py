"""A real process that speaks the worker's protocol without torch; the specification's settings
say how it behaves. Started by tests in place of `genesis_fp16.worker`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue

from genesis_fp16.domain.run_spec import RunSpec
from infrastructure.events import COMMAND_ADAPTER, EventWriter
from infrastructure.events.command import SetPrecision, Stop
from infrastructure.events.event import (
    Evaluated,
    Finished,
    PrecisionChanged,
    Published,
    Started,
    StepStats,
)

spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_bytes())
how = spec.settings
changed = spec.run_folder / "behaviour.json"  # from the next attempt on
if changed.exists():
    how = json.loads(changed.read_text())
emit = EventWriter(spec.events_path)
commands: SimpleQueue = SimpleQueue()
progress = spec.run_folder / "step"


def listen() -> None:
    for line in sys.stdin.buffer:
        commands.put(COMMAND_ADAPTER.validate_json(line))
    commands.put(Stop(reason="the daemon is gone"))


def finish(outcome: str, code: int, error: str = "") -> None:
    emit(Finished(outcome=outcome, error=error))
    os._exit(code)


def train(total: int) -> None:
    """Count steps until *total*, obeying commands; go on where an earlier attempt stopped."""
    step = int(progress.read_text()) if progress.exists() else 0
    while step < total:
        step += 1
        emit(StepStats(step=step, total_steps=total, applied=1, loss_scale=1.0, precision="fp32"))
        try:
            command = commands.get(timeout=0.01)
        except Empty:
            continue
        if isinstance(command, Stop):
            progress.write_text(str(step))
            finish("stopped", 75)
        if isinstance(command, SetPrecision):
            emit(PrecisionChanged(step=step, state=command.state, loss_scale=1.0))


def leave_descendants() -> None:
    """One in our process group, one in a session of its own; their pids go into a file."""
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    pids = [
        subprocess.Popen(sleep, stdin=subprocess.DEVNULL, start_new_session=apart).pid
        for apart in (False, True)
    ]
    (spec.attempt_folder / "descendants.new").write_text(json.dumps(pids))
    (spec.attempt_folder / "descendants.new").rename(spec.attempt_folder / "descendants")


if "no_start" in how:
    time.sleep(600)
if "ignore_all" in how:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, lambda *_: commands.put(Stop(reason="SIGTERM")))
    threading.Thread(target=listen, daemon=True).start()
sys.stdout.write("a line for the log\n")
sys.stdout.flush()
emit(Started(pid=os.getpid(), device="cpu", torch_version="none"))
emit(PrecisionChanged(step=0, state=spec.precision, loss_scale=1.0))
if "descendants" in how:
    leave_descendants()
if "garbage" in how:
    with spec.events_path.open("ab") as file:
        file.write(b"no event\n")
if "flood" in how:
    with spec.events_path.open("ab") as file:
        file.write((b"x" * 999 + b"\n") * how["flood"])
if "hang" in how:
    time.sleep(600)
if "exit" in how and spec.attempt <= how.get("failing_attempts", 1000):
    finish("misconfigured" if how["exit"] == 78 else "failed", how["exit"], "it went wrong")
if "kill" in how and spec.attempt == 1:
    os.kill(os.getpid(), how["kill"])
train(how.get("steps", 3))
emit(Evaluated(epoch=1, metrics={"mse": 0.5, "odd": float("nan")}, primary="mse"))
emit(Published(published=True, reason="better", metrics={"base": 1.0}))
finish("done", 0)
