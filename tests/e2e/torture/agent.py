"""Agents whose plan makes them fail, wait or kill themselves at exact points of a run.

Copied into a folder of its own, with the metadata an installer would write. The plan of an agent
is ``plans/AGENT/plan.json`` below the daemon's working folder: moments, each a place, a count and
what to do there, once. A moment that was reached leaves a file of its name beside the plan.
"""

import ctypes
import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch

from infrastructure.agent_contract import (
    CONTRACT_VERSION,
    Evaluation,
    EvaluationReport,
    Publication,
    RunContext,
    Schedule,
    TrainingJob,
    Transition,
)
from infrastructure.files import write_atomically

TRANSITIONS = 48
EPOCHS, BATCHES, ROUNDS = 3, 30, 3
HOLD_SECONDS = 60.0
POLL_SECONDS = 0.005
_IS_WORKER = re.compile("genesis_fp16.worker")

_held_locks = []  # for the life of this process
_timers = []  # of kills


class Plan:
    """What happens to an agent, and what of it has happened."""

    def __init__(self, agent: str) -> None:
        self._folder = Path.cwd() / "plans" / agent
        try:
            plan = json.loads((self._folder / "plan.json").read_text())
        except FileNotFoundError:
            plan = {}
        self._moments = plan.get("moments", [])
        self._pace_seconds = plan.get("pace_seconds", 0.0)

    def reach(self, place: str, count: int) -> None:
        """Do what the plan has for this *place*, the *count*-th time."""
        for moment in self._moments:
            if moment["place"] != place or moment["count"] != count:
                continue
            path = self._folder / moment["name"]
            if not moment.get("always"):
                try:
                    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                except FileExistsError:
                    continue
            ACTIONS[moment["do"]](moment, path)

    def pace(self) -> None:
        """Wait as long as the plan has for a batch, unless the round is over."""
        if self._pace_seconds and not (self._folder / "hurry").exists():
            time.sleep(self._pace_seconds)

    def claim(self) -> None:
        """Note in a file if another process of this agent is active; see the invariants."""
        if _held_locks:
            return
        lock = (self._folder / "active").open("w")
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            (self._folder / f"active-twice-{os.getpid()}").touch()
        _held_locks.append(lock)


def _hold(moment, path):
    go = path.with_name(f"{path.name}.go")
    deadline = time.monotonic() + HOLD_SECONDS
    while not go.exists() and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)


def _raise(moment, path):
    raise RuntimeError(f"planned at {moment['place']} {moment['count']}")


def _kill(moment, path):
    """Leave in the file of the moment what the main thread is doing, and kill the process."""
    frames = traceback.extract_stack(sys._current_frames()[threading.main_thread().ident])
    path.write_text("".join(f"{frame.filename} {frame.name}\n" for frame in frames))
    os.kill(os.getpid(), signal.SIGKILL)


def _kill_soon(moment, path):
    """Kill this process so many seconds later, whatever it does then; the first of several wins."""
    if _timers:
        path.unlink()
        return
    _timers.append(threading.Timer(moment["seconds"], _kill, (moment, path)))
    _timers[0].start()


def _hang(moment, path):
    while True:
        time.sleep(1)


def _leave_children(moment, path):
    """Start processes that outlive their parent: in a session of their own, deaf to SIGTERM."""
    deaf = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(path)!r} + '.' + str(os.getpid()), 'w').close(); time.sleep(1000)"
    )
    for _ in range(2):
        subprocess.Popen([sys.executable, "-S", "-E", "-c", deaf], start_new_session=True)
    while len(list(path.parent.glob(f"{path.name}.*"))) < 2:
        time.sleep(POLL_SECONDS)


def _crash_in_a_write(moment, path):
    """Kill this process at the n-th system call from now on that makes a file durable."""
    left = moment["calls"]

    def counted(call):
        def count(*arguments, **options):
            nonlocal left
            left -= 1
            if left <= 0:
                _kill(moment, path)
            return call(*arguments, **options)

        return count

    for name in ("fsync", "replace", "unlink", "rename"):
        setattr(os, name, counted(getattr(os, name)))


def _print_much(moment, path):
    for number in range(5000):
        print(f"line {number} " + "x" * 200)


def _touch(moment, path):
    pass  # the file of the moment says that it was reached


ACTIONS = {
    "mark": _touch,
    "hold": _hold,
    "raise": _raise,
    "kill": _kill,
    "kill-soon": _kill_soon,
    "hang": _hang,
    "stop": lambda moment, path: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda moment, path: os._exit(moment.get("code", 0)),
    "sys-exit": lambda moment, path: sys.exit(moment.get("code", 0)),
    "segfault": lambda moment, path: ctypes.string_at(0),
    "abort": lambda moment, path: os.abort(),
    "leave-children": _leave_children,
    "crash-in-write": _crash_in_a_write,
    "print-much": _print_much,
    "no-memory": lambda moment, path: bytearray(1 << 62),
    "wrong-type": lambda moment, path: None,
}


class TortureAgent:
    """Learns a line, with dropout, so that every random number counts."""

    name = ""
    contract_version = CONTRACT_VERSION

    def __init__(self) -> None:
        self._plan = Plan(self.name)
        self._plan.reach("load", int(_IS_WORKER.search(sys.argv[0]) is not None))

    def schedule(self) -> Schedule:
        return Schedule(every_seconds=300 * 86400, catch_up="none")

    def settings_model(self) -> None:
        return None

    def collect(self, context: RunContext) -> Iterator[Transition]:
        self._plan.claim()
        for index in range(TRANSITIONS):
            self._plan.reach("collect", index)
            yield Transition(
                group=f"{index % 8}",
                observation={"x": index / TRANSITIONS},
                action={},
                reward=2 * index / TRANSITIONS - 1,
            )

    def build_job(self, context: RunContext, transitions) -> TrainingJob:
        self._plan.claim()
        self._plan.reach("build", 0)
        rows = sorted({(t.observation["x"], t.reward) for t in transitions})
        inputs = torch.tensor([[x] for x, _ in rows], dtype=torch.float32)
        outputs = torch.tensor([[y] for _, y in rows], dtype=torch.float32)
        torch.manual_seed(context.seed)
        model = torch.nn.Sequential(
            torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1)
        )

        def batches(epoch: int):
            generator = torch.Generator().manual_seed(epoch)
            for number in range(BATCHES):
                chosen = torch.randint(len(rows), (16,), generator=generator)
                self._plan.reach("batch", epoch * BATCHES + number)
                self._plan.pace()
                yield {"inputs": inputs[chosen], "outputs": outputs[chosen]}

        def loss(forward, batch):
            return torch.nn.functional.mse_loss(forward(batch["inputs"]), batch["outputs"])

        def evaluate(forward) -> Evaluation:
            self._plan.reach("evaluate", 0)
            error = (forward(inputs) - outputs).square().mean()
            return Evaluation(metrics={"mse": float(error)}, primary="mse", higher_is_better=False)

        return TrainingJob(
            model=model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=EPOCHS,
            keep_best_epoch=True,
        )

    def publish(self, context: RunContext, model, report: EvaluationReport) -> Publication:
        self._plan.reach("publish", 0)
        weights = self.trained(context, model, report)
        write_atomically(context.run_folder / "weights.json", json.dumps(weights))
        self._plan.reach("publish", 1)
        write_atomically(context.agent_folder / "published.json", json.dumps(weights))
        self._plan.reach("publish", 2)
        return Publication(published=True, reason="always", metrics=dict(report.evaluation.metrics))

    def trained(self, context: RunContext, model, report: EvaluationReport) -> dict[str, object]:
        """A hash of the weights."""
        digest = hashlib.sha256()
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode() + tensor.numpy().tobytes())
        return {"sha256": digest.hexdigest(), "steps": report.steps}


class Oak(TortureAgent):
    """In FP32 by its setting."""

    name = "oak"


class Elm(TortureAgent):
    """The same."""

    name = "elm"


class Ash(TortureAgent):
    """In FP16."""

    name = "ash"


class Fir(TortureAgent):
    """The same."""

    name = "fir"


class Rowan(TortureAgent):
    """In FP16; its job has five parts, and collects in environments."""

    name = "rowan"

    def build_job(self, context: RunContext, transitions):
        from parts_job import parts_job

        self._plan.claim()
        self._plan.reach("build", 0)

        def reach(place: str, count: int) -> None:
            self._plan.reach(place, count)
            if place == "batch":
                self._plan.pace()

        return parts_job(
            context, epochs=EPOCHS, rounds=ROUNDS, batches=BATCHES // ROUNDS, reach=reach
        )

    def trained(self, context: RunContext, model, report: EvaluationReport) -> dict[str, object]:
        from parts_job import trained

        return trained(context, model, report)


class Elder(TortureAgent):
    """Installed while the daemon serves."""

    name = "elder"


class Yew(TortureAgent):
    """Due at times, and once for those that were missed."""

    name = "yew"

    def schedule(self) -> Schedule:
        return Schedule(every_seconds=300 * 86400)
