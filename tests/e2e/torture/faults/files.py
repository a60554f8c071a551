"""Faults of files: torn, cut off, replaced, damaged, and a disk that is full."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.round import Round, TortureRun, moment

_GARBAGE = (
    b"\n",
    b"{",
    b"\xff\xfe\x00\n",
    b'{"kind": "step_stats"}\n',
    b"null\n",
    b"[1, 2]\n" * 50,
)


def _held(r: Round) -> TortureRun:
    """A run whose worker holds in training, after some checkpoints."""
    run = r.start(moment("batch", r.step(40), "hold"), pace_seconds=0.004)
    r.until_reached(run)
    return run


def _damage(r: Round, path: Path) -> None:
    """Cut off, change or delete a file."""
    data = bytearray(path.read_bytes())
    how = r.rng.choice(("cut", "flip", "empty", "delete", "grow"))
    r.note(f"{path.name}: {how}")
    if how == "delete" or not data:
        path.unlink()
        return
    if how == "cut":
        del data[r.rng.randrange(len(data)) :]
    elif how == "flip":
        data[r.rng.randrange(len(data))] ^= 1 << r.rng.randrange(8)
    elif how == "empty":
        data.clear()
    else:
        data += b"\0" * 100
    path.write_bytes(data)


@fault("garbage in the event file", quick=True)
def garbage_in_events(r: Round) -> None:
    """Lines that are not events cost nothing but themselves."""
    run = _held(r)
    run.events_damaged, run.attempts = True, {1}
    with (run.attempt_folder() / "events.ndjson").open("ab") as events:
        for _ in range(r.rng.randint(1, 5)):
            events.write(r.rng.choice(_GARBAGE))
        events.write(b"\n")
    r.go_on(run)


@fault("event file cut off")
def events_cut_off(r: Round) -> None:
    run = _held(r)
    run.events_damaged, run.attempts = True, {1, 2}
    path = run.attempt_folder() / "events.ndjson"
    os.truncate(path, r.rng.randrange(path.stat().st_size))
    r.go_on(run)


@fault("event file replaced")
def events_replaced(r: Round) -> None:
    """By a link, a pipe or a folder; the daemon must not follow, wait or stall."""
    run = _held(r)
    run.events_damaged = True
    path = run.attempt_folder() / "events.ndjson"
    path.unlink()
    run.damaged.add(path)
    replacement = r.rng.choice(("link", "pipe", "folder", "nothing", "empty"))
    r.note(f"by {replacement}")
    r.log_may_hold += ["events.ndjson", "run_handling_failed"]
    if replacement == "link":
        path.symlink_to("/dev/zero")
    elif replacement == "pipe":
        os.mkfifo(path)
    elif replacement == "folder":
        path.mkdir()
    elif replacement == "empty":
        path.touch()
    run.states = frozenset({"succeeded", "failed"})
    r.go_on(run)
    _check_flag(r)


@fault("attempt's folder out of reach for a moment", quick=True)
def attempt_folder_away(r: Round) -> None:
    """As when shared storage fails: what cannot be read or written now is a moment later."""
    run = r.start(pace_seconds=0.02, attempts={1})
    r.training(run)
    folder, aside = run.attempt_folder(), r.service.folder / f"aside-{run.id}"
    folder.rename(aside)
    folder.touch()  # so that everything in it is an error, not missing
    r.sleep(0.2, 2.0)
    folder.unlink()
    aside.rename(folder)


def _check_flag(r: Round) -> None:
    """The flag reaches another run within 2 seconds."""
    in_half = r.start(agent=r.in_half(), pace_seconds=0.03)
    r.training_in_half(in_half)
    r.check_obeyed(in_half, r.service.configure(ENABLE_FP16_TRAINING="false"), "fp32")
    r.service.configure(ENABLE_FP16_TRAINING="true")


@fault("flood of events")
def flood(r: Round) -> None:
    run = _held(r)
    run.events_damaged = True
    line = r.rng.choice(
        (
            b'{"kind":"progress","phase":"train","done":1,"time":1.0}\n',
            b'{"kind":"notice","event":"flood","time":1.0}\n',
            b'{"kind":"evaluated","epoch":1,"primary":"m","metrics":{"m":1.0},"time":1.0}\n',
            b"x" * 200 + b"\n",
        )
    )
    count = r.rng.randint(50_000, 150_000)
    r.note(f"{count} of {line[:40]!r}")
    with (run.attempt_folder() / "events.ndjson").open("ab") as events:
        events.write(line * count)
    r.go_on(run)
    _check_flag(r)


@fault("newest checkpoint damaged", quick=True)
def checkpoint_damaged(r: Round) -> None:
    run = _held(r)
    r.kill_worker(run, signal.SIGSTOP)
    r.wait(lambda: _is_stopped(run.worker()), "the worker to stop")
    for path in run.checkpoints()[-r.rng.randint(1, 2) :]:
        chosen = path if r.rng.random() < 0.6 else path.with_name(f"{path.name}.json")
        _damage(r, chosen)
        run.damaged |= {path, path.with_name(f"{path.name}.json")}
    r.kill_worker(run, signal.SIGKILL)
    run.attempts = {2}


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@fault("best epoch damaged")
def best_epoch_damaged(r: Round) -> None:
    """It counts as none; the last epoch, which is the best one here, replaces it."""
    run = r.start(moment("batch", r.step(low=35), "hold"), pace_seconds=0.004)
    r.until_reached(run)
    r.kill_worker(run, signal.SIGSTOP)
    r.wait(lambda: _is_stopped(run.worker()), "the worker to stop")
    _damage(r, run.folder / "best-epoch.pt")
    r.kill_worker(run, signal.SIGKILL)
    run.attempts = {2}


@fault("all checkpoints gone")
def checkpoints_gone(r: Round) -> None:
    run = _held(r)
    r.kill_worker(run, signal.SIGSTOP)
    r.wait(lambda: _is_stopped(run.worker()), "the worker to stop")
    for path in (run.folder / "checkpoints").iterdir():
        path.unlink()
    r.kill_worker(run, signal.SIGKILL)
    run.attempts = {2}


@fault("data snapshot damaged", quick=True)
def snapshot_damaged(r: Round) -> None:
    """The run sets its checkpoints aside and starts over."""
    run = _held(r)
    r.kill_worker(run, signal.SIGSTOP)
    r.wait(lambda: _is_stopped(run.worker()), "the worker to stop")
    path = run.folder / "snapshot.json"
    path.write_bytes(r.rng.choice((b"", b"{", b"[]", b"\xff", b'{"a": -1}')))
    run.damaged |= {run.folder / "snapshot.json.set-aside-2"}
    r.kill_worker(run, signal.SIGKILL)
    run.attempts = {2}


@fault("garbage in the replay buffer", quick=True)
def replay_garbage(r: Round) -> None:
    first = r.start(moment("collect", r.rng.randrange(1, 48), "kill"))
    r.until_ended(first)
    segments = sorted((r.service.home / "agents" / r.victim / "replay").glob("*.jsonl"))
    for path in r.rng.sample(segments, min(len(segments), 2)):
        data = bytearray(path.read_bytes())
        how = r.rng.choice(("append", "cut", "insert"))
        r.note(how)
        if how == "append":
            data += r.rng.choice((b"junk", b"\xff\xfe\n", b"{}\n", b"\0" * 300, b"null\n"))
        elif how == "cut":
            del data[len(data) - r.rng.randint(1, 40) :]
        else:
            data[len(data) // 2 : len(data) // 2] = b"\n%%%\n"
        path.write_bytes(data)
    r.start(attempts={1})


@fault("folder of an ended run replaced by a link")
def retention_link(r: Round) -> None:
    """Retention, which has looked at the folder before, must not delete what the link leads to."""
    first = r.start(pace_seconds=0.005)  # so that it writes checkpoints
    r.until_ended(first)
    r.sleep(0.5, 0.8)  # retention looks at ended runs in the next rounds of the loop
    folder = r.rng.choice((first.folder / "checkpoints", first.folder))
    r.note(folder.name if folder != first.folder else "run")
    precious = r.service.folder / f"precious-{first.id}"
    shutil.copytree(folder, precious)
    kept = sorted(precious.rglob("*"))
    folder.rename(r.service.folder / f"moved-{first.id}")
    folder.symlink_to(precious)
    first.damaged.add(folder)
    for _ in range(3):  # as many as retention keeps
        r.start()
        r.until_ended()
    r.sleep(0.8, 1.2)
    lost = set(kept) - set(precious.rglob("*"))
    r.check(not lost, f"retention deleted through a link: {sorted(lost)}")


@fault("published file and status damaged")
def small_files_damaged(r: Round) -> None:
    first = r.start(agent=r.victim)
    r.until_ended(first)
    _damage(r, r.service.home / "agents" / r.victim / "published.json")
    status = r.service.home / "daemon.json"
    content = status.read_bytes()
    _damage(r, status)
    r.until_ended(r.start(attempts={1}))
    status.write_bytes(content)  # the daemon writes it when it changes, which may be much later


@fault("disk full", quick=True, disk=True)
def disk_full(r: Round) -> None:
    """The run waits and goes on; the flag is obeyed meanwhile."""
    hold = moment("batch", r.step(1, 2), "hold")
    run = r.start(hold, agent=r.in_half(), pace_seconds=0.45)  # within the first round
    r.until_reached(run)
    run.attempts, run.events_damaged = {1}, True  # an event may not fit on the disk
    r.service.prepare(ENABLE_FP16_TRAINING="false")
    ballast = r.service.home / ".ballast"
    _fill(ballast)
    r.go_on(run)
    try:
        r.sleep(0.0, 1.0)
        since = r.service.swap()
        r.sleep(0.5, 2.5)
    finally:
        ballast.unlink()
    r.check_obeyed(run, since, "fp32")
    r.service.configure(ENABLE_FP16_TRAINING="true")


@fault("disk full at the end of an epoch", disk=True)
def disk_full_at_evaluation(r: Round) -> None:
    """The best epoch finds no room: the attempt ends, and costs no failure."""
    run = r.start(moment("batch", r.step(24, 29), "hold"), pace_seconds=0.02)
    r.until_reached(run)
    run.events_damaged = True
    ballast = r.service.home / ".ballast"
    _fill(ballast)
    r.go_on(run)
    try:
        r.sleep(0.5, 2.5)
    finally:
        ballast.unlink()


@fault("disk full when a run starts", disk=True)
def disk_full_at_start(r: Round) -> None:
    ballast = r.service.home / ".ballast"
    run = r.start(moment("load", 1, "hold"))
    r.until_reached(run)
    _fill(ballast)
    r.go_on(run)
    try:
        r.sleep(0.5, 2.0)
    finally:
        ballast.unlink()
    for active in r.runs:  # a start may need room more often than there are attempts
        active.states = frozenset({"succeeded", "failed"})
        active.events_damaged = True


def _fill(ballast: Path) -> None:
    """Use up the home's file system to the last byte.

    A backup leaves hidden files out: one that read it would keep its room after its removal.
    """
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12, 1):
            for _ in range(200_000):
                try:
                    if not file.write(b"\0" * size):
                        break
                except OSError:
                    break
    time.sleep(0.01)
