"""Faults of processes: killed, stopped, asked to end, at every moment of a run."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import BATCHES, ENDED, Round, TortureRun, moment
from tests.e2e.torture.service import WITH_PARTS, Row

_KILLS = ("kill-soon",) * 10 + ("crash-in-write",) * 5 + ("hold",) * 5  # the last of daemons
_STEPS_OF_ENVIRONMENTS = 54  # with the policy, in a run with parts
_IN_STEP = ("critic_a", "critic_b", "actor", "temperature")
_PHASE_AT = {"act": "collection", "evaluate": "evaluation", "publish": "publication"}  # by place
_PHASE_IN_STACK = {  # by what is in a stack; the first that is there
    " publish\n": "publication",
    " write_checkpoint\n": "a checkpoint's write",
    "evaluations.py": "evaluation",
    "environment_rounds.py": "collection",
    " train_batch\n": "step",
    "loop/run.py run\n": "work between steps",
    "worker/tasks.py train\n": "start",
}


def _restart(r: Round) -> None:
    """Start a daemon; at once, or after the orphans have ended."""
    if r.rng.random() < 0.5:
        r.note("after the orphans")
        r.wait(lambda: not r.service.strangers(), "the orphans to end")
    r.service.start()


def _restart_after(r: Round, ended: int) -> None:
    """Check that the daemon *ended* well and alone, and start it again."""
    r.check(ended == 0, f"the daemon ended with {ended}")
    r.check(r.service.are_all_gone(), "the daemon left processes behind")
    r.service.start()


@fault("worker killed in training", quick=True)
def worker_killed(r: Round) -> None:
    steps = sorted(r.rng.sample(range(90), r.rng.randint(1, 3)))
    r.start(*(moment("batch", step, "kill") for step in steps), attempts={len(steps) + 1})


@fault("worker killed while it starts")
def worker_killed_at_start(r: Round) -> None:
    r.start(moment("load", 1, "kill"), moment("build", 0, "kill"), attempts={3})


@fault("worker killed while it collects", quick=True)
def worker_killed_in_collect(r: Round) -> None:
    r.start(moment("collect", r.rng.randrange(48), "kill"), attempts={2})


@fault("worker killed while it publishes", quick=True)
def worker_killed_in_publish(r: Round) -> None:
    r.start(moment("publish", r.rng.randrange(3), "kill"), attempts={2})


@fault("worker killed while it writes a checkpoint", quick=True)
def worker_killed_in_checkpoint(r: Round) -> None:
    calls = [r.rng.randint(1, 14) for _ in range(r.rng.randint(1, 3))]
    moments = (moment("batch", r.step(0, 60), "crash-in-write", calls=count) for count in calls)
    r.start(*moments, attempts={1, 2, 3, 4})


@fault("worker killed while it writes its data snapshot")
def worker_killed_in_snapshot(r: Round) -> None:
    r.start(moment("collect", 47, "crash-in-write", calls=r.rng.randint(1, 8)), attempts={2})


@fault("worker killed while it writes what it publishes")
def worker_killed_in_publication(r: Round) -> None:
    r.start(moment("publish", 0, "crash-in-write", calls=r.rng.randint(1, 7)), attempts={1, 2})


@fault("worker told to end", quick=True)
def worker_terminated(r: Round) -> None:
    number = r.rng.choice((signal.SIGTERM, signal.SIGINT))
    run = r.start(moment("batch", r.step(), "hold"), attempts={2})
    r.until_reached(run)
    r.kill_worker(run, number)
    r.go_on(run)


@fault("worker stopped for good")
def worker_stopped(r: Round) -> None:
    """It makes no progress, so it is killed and tried again."""
    r.start(moment("batch", r.step(), "stop"), attempts={2})


@fault("worker stopped for a moment", quick=True)
def worker_paused(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "stop"), attempts={1})
    r.until_reached(run)
    r.sleep(0.3, 1.5)
    r.kill_worker(run, signal.SIGCONT)


@fault("daemon killed", quick=True)
def daemon_killed(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    r.service.end(signal.SIGKILL)
    r.go_on(run)
    _restart(r)


@fault("daemon killed at a random moment")
def daemon_killed_anywhere(r: Round) -> None:
    for _ in range(r.rng.randint(1, 3)):
        r.start(agent=(r.victim, *r.others)[len(r.runs) % 3])
        r.sleep(0.0, 1.2)
        r.service.end(signal.SIGKILL)
        r.service.start()


@fault("killed 20 times")
def killed_often(r: Round) -> None:
    """The worker at 15 places of a run, and its daemon at 5; more runs if one misses some."""
    _configure_retries(r, attempts=1 + len(_KILLS), backoff_seconds=0.001)
    killed: list[str] = []
    while (left := len(_KILLS) - len(killed)) > 0:
        moments = [_killing_moment(r, do) for do in r.rng.sample(_KILLS, left)]
        run = r.start(*moments, pace_seconds=0.002)
        killed += _kill_daemons(r, run, [m for m in moments if m["do"] == "hold"])
        paths = [run.plan / planned["name"] for planned in moments]
        stacks = [path.read_text() for path in paths if path.exists()]
        workers = [_phase(stack) for stack in stacks if stack]
        run.attempts = range(1 + len(workers), 2 + len(_KILLS))
        killed += workers
    counted = sorted(Counter(killed).items())
    r.note(f"{len(killed)} kills, {', '.join(f'{count} in {what}' for what, count in counted)}")
    r.until_ended()
    _configure_retries(r, attempts=4, backoff_seconds=0.05)


def _configure_retries(r: Round, *, attempts: int, backoff_seconds: float) -> None:
    r.service.configure(
        GENESIS_MAX_ATTEMPTS=attempts, GENESIS_RETRY_BACKOFF_SECONDS=backoff_seconds
    )
    _restart_after(r, r.service.end())


def _killing_moment(r: Round, do: str) -> dict[str, Any]:
    """A place of the victim's run, and what is done there."""
    batch = r.rng.randrange(BATCHES)
    places = [("batch", batch), ("evaluate", 0), ("publish", r.rng.randrange(3))]
    if r.victim == WITH_PARTS:
        acted = batch * _STEPS_OF_ENVIRONMENTS // BATCHES
        places += [(r.rng.choice(_IN_STEP), batch - batch % 2), ("act", acted)]
    return moment(
        *r.rng.choice(places), do, seconds=r.rng.uniform(0.0, 0.01), calls=r.rng.randint(1, 14)
    )


def _kill_daemons(r: Round, run: TortureRun, holds: list[dict[str, Any]]) -> list[str]:
    """Kill a daemon whenever the worker holds, until the run has ended; what the run was at."""
    places = {run.plan / planned["name"]: planned["place"] for planned in holds}
    killed: list[str] = []
    while (row := r.row(run)).state not in ENDED:
        for path in [path for path in places if path.exists()]:
            killed.append(f"{_PHASE_AT.get(places.pop(path), 'step')} (the daemon's)")
            r.service.end(signal.SIGKILL)
            path.with_name(f"{path.name}.go").touch()
            _restart(r)
        changed = partial(_has_changed, r, run, row, places)
        r.wait(changed, "the run to go on")
    return killed


def _has_changed(r: Round, run: TortureRun, row: Row, places: Iterable[Path]) -> bool:
    """Whether *run* is no longer as *row* has it, or its worker has reached one of *places*."""
    return r.row(run) != row or any(path.exists() for path in places)


def _phase(stack: str) -> str:
    """What a process was at when it was killed, by the *stack* of its main thread."""
    return next((phase for mark, phase in _PHASE_IN_STACK.items() if mark in stack), "end")


@fault("daemon killed at one of its commits", quick=True, forked=True)
def daemon_killed_at_commit(r: Round) -> None:
    commits = r.rng.randint(1, 16)
    r.note(f"at commit {commits}")
    r.start(pace_seconds=0.01)
    r.service.fuse.write_text(str(commits))
    r.wait(lambda: r.service.status() is not None or _all_ended(r), "the daemon to be killed")
    r.service.fuse.unlink()
    if r.service.status() is None:
        r.service.end(signal.SIGKILL)
    _restart(r)


def _all_ended(r: Round) -> bool:
    return all(r.row(run).state == "succeeded" for run in r.runs)


@fault("daemon killed while it starts")
def daemon_killed_at_start(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    r.service.end(signal.SIGKILL)
    r.go_on(run)
    for _ in range(r.rng.randint(1, 3)):
        r.service.launch()
        r.sleep(0.0, 1.0)
        r.service.end(signal.SIGKILL)
    r.service.start()


@fault("daemon and worker killed together", quick=True)
def both_killed(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    pids = [run.worker(), r.service.pid]
    r.rng.shuffle(pids)
    for pid in pids:
        os.kill(int(pid or 0), signal.SIGKILL)
    r.wait(lambda: r.service.status() is not None, "the daemon to end")
    _restart(r)


@fault("daemon told to end", quick=True)
def daemon_terminated(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    r.go_on(run)
    _restart_after(r, r.service.end(r.rng.choice((signal.SIGTERM, signal.SIGINT))))


@fault("daemon told to end twice")
def daemon_terminated_twice(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"))
    r.until_reached(run)
    r.service.send(signal.SIGTERM)
    r.wait(lambda: "drain_started" in r.service.log, "the drain")
    _restart_after(r, r.service.end(signal.SIGTERM))


@fault("daemon told to end beside a worker that does not stop")
def daemon_terminated_beside_hang(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hang"))
    r.until_reached(run)
    _restart_after(r, r.service.end(signal.SIGTERM))


@fault("daemon stopped for a moment", quick=True)
def daemon_paused(r: Round) -> None:
    r.start(attempts={1})
    r.sleep(0.0, 1.0)
    r.service.send(signal.SIGSTOP)
    r.sleep(0.5, 2.0)
    r.service.send(signal.SIGCONT)


@fault("storm of SIGHUP", quick=True)
def hangups(r: Round) -> None:
    run = r.start(pace_seconds=0.005, attempts={1})
    r.training(run)
    for number in range(60):
        r.service.send(signal.SIGHUP)
        if number % 10 == 0:
            r.service.configure(GENESIS_MAX_GRAD_NORM=1.0)
        time.sleep(0.005)


@fault("second daemon on the home", quick=True)
def second_daemon(r: Round) -> None:
    run = r.start(moment("batch", r.step(), "hold"), attempts={1})
    r.until_reached(run)
    code, output = r.service.command("serve")
    r.go_on(run)
    r.check(code == os.EX_CANTCREAT, f"a second daemon ended with {code}: {output[-300:]}")
    r.check(str(r.service.pid) in output, "it does not name the first")


@fault("stale lock and status")
def stale_status(r: Round) -> None:
    r.start(moment("batch", r.step(), "kill"))
    r.sleep(0.0, 1.0)
    r.service.end(signal.SIGKILL)
    status = r.service.home / "daemon.json"
    content = r.rng.choice((b"", b"{", b"\xff\x00" * 50, b'{"pid": 1, "host": "elsewhere"}'))
    status.write_bytes(content)
    (r.service.home / "daemon.lock").write_bytes(content)
    r.note(f"status {content[:10]!r}")
    r.service.start()


@fault("children of a worker that outlive it")
def leaked_children(r: Round) -> None:
    ending = r.rng.choice(("kill", "raise", "mark"))
    step = r.step()
    places = (("leave-children", step), ("hold", step + 1), (ending, step + 2))
    run = r.start(*(moment("batch", at, do) for do, at in places))
    r.until_reached(run, 1)
    r.check(len(list(run.plan.glob("moment-0.*"))) == 2, "the children have not started")
    if ending == "kill":  # the daemon lists descendants every 2 s
        r.sleep(2.3, 2.8)
    r.go_on(run, 1)
