"""Faults of engines, machines of a cluster, and the folder that they share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import psutil

from tests.e2e.torture.catalogue import fault
from tests.e2e.torture.clusters import Cluster, Kubernetes, Slurm
from tests.e2e.torture.round import Round, TortureRun, moment

_REMOTE: dict[str, Any] = {"executors": ("slurm", "ray", "kubernetes")}
_SLURM: dict[str, Any] = {"executors": ("slurm",)}
_KUBERNETES: dict[str, Any] = {"executors": ("kubernetes",)}


def _cluster(r: Round) -> Cluster:
    cluster = r.service.stage.cluster
    assert cluster is not None
    return cluster


def _slurm(r: Round) -> Slurm:
    cluster = _cluster(r)
    assert isinstance(cluster, Slurm)
    return cluster


def _kubernetes(r: Round) -> Kubernetes:
    cluster = _cluster(r)
    assert isinstance(cluster, Kubernetes)
    return cluster


def _job(run: TortureRun) -> str:
    """Name of the job of its newest attempt."""
    return str(json.loads((run.attempt_folder() / "job.json").read_text())["job"])


def _launcher(run: TortureRun) -> int:
    """Pid of the launcher of its newest attempt."""
    return int(json.loads((run.attempt_folder() / "claim.json").read_text())["pid"])


def _lose(r: Round, run: TortureRun, launcher: int) -> None:
    """Wait for the end of the worker that is killed, which must not go on before."""
    gone = (launcher, run.worker())
    r.wait(lambda: not any(map(psutil.pid_exists, gone)), "the end of the job")
    r.go_on(run)


def _ordered(r: Round, run: TortureRun) -> None:
    """Wait until the engine has been asked for its job."""
    r.wait((run.attempt_folder(1) / "job.json").exists, f"the job of {run.agent}")
    r.wait(lambda: r.service.has_logged("job_submitted", _job(run)), "its submission")


def _held_early(r: Round, **how: Any) -> TortureRun:
    """A run that holds in training, and has steps left in which to notice that it is to end."""
    run = r.start(moment("batch", r.step(high=60), "hold"), pace_seconds=0.05, **how)
    r.until_reached(run)
    return run


def _end_when_asked(r: Round, run: TortureRun) -> None:
    """Let the worker go on when its launcher has been asked to end, and wait for its end."""
    gone, log = (_launcher(run), run.worker()), run.attempt_folder() / "engine.log"
    r.wait(lambda: "stopping the worker: SIGTERM" in log.read_text(), "the launcher to be asked")
    r.go_on(run)
    r.wait(lambda: not any(map(psutil.pid_exists, gone)), "the end of the job")


def _held(r: Round, **how: Any) -> TortureRun:
    """A run whose worker holds in training."""
    run = r.start(moment("batch", r.step(), "hold"), **how)
    r.until_reached(run)
    return run


# The engine


@fault("engine out of reach", quick=True, **_REMOTE)
def engine_out_of_reach(r: Round) -> None:
    """While a run starts, trains or ends; it waits, or goes on."""
    when = r.rng.choice(("start", "training"))
    r.note(when)
    run = _held(r, attempts={1}) if when == "training" else None
    with _cluster(r).unreachable():
        if run is None:
            r.start(attempts={1})
        else:
            r.go_on(run)
        r.sleep(0.5, 4.0)


@fault("engine out of reach while the daemon is killed", **_REMOTE)
def engine_away_and_daemon_killed(r: Round) -> None:
    when = r.rng.choice(("start", "training"))
    r.note(when)
    run = _held(r) if when == "training" else None
    with _cluster(r).unreachable():
        if run is None:
            r.start()
            r.sleep(0.0, 1.0)
        r.service.end(signal.SIGKILL)
        if run is not None:
            r.go_on(run)
        r.service.start()
        r.sleep(0.0, 2.0)


@fault("run cancelled while the engine is out of reach", **_REMOTE)
def cancelled_without_engine(r: Round) -> None:
    """Its worker stops all the same; what has not started never does."""
    when = r.rng.choice(("start", "training"))
    r.note(when)
    cancelled = frozenset({"cancelled"})
    run = _held_early(r, states=cancelled) if when == "training" else None
    with _cluster(r).unreachable():
        run = run or r.start(states=cancelled)
        r.sleep(0.0, 2.0)
        r.check(r.service.cancel(run.id), "the request to cancel was refused")
        r.go_on(run)
        r.until_ended(run)
        r.sleep(0.0, 2.0)


@fault("engine full", quick=True, **_REMOTE)
def engine_full(r: Round) -> None:
    """Runs wait in its queue, and no deadline counts."""
    with _cluster(r).full():
        r.start(attempts={1})
        r.sleep(0.5, 5.0)


@fault("run cancelled while its job waits", **_REMOTE)
def cancelled_in_queue(r: Round) -> None:
    with _cluster(r).full():
        run = r.start(states=frozenset({"cancelled"}))
        _ordered(r, run)
        r.sleep(0.0, 2.0)
        r.check(r.service.cancel(run.id), "the request to cancel was refused")
        r.sleep(0.5, 3.0)


@fault("daemon killed while its jobs wait", **_REMOTE)
def daemon_killed_and_queue(r: Round) -> None:
    with _cluster(r).full():
        run = r.start(attempts={1})
        _ordered(r, run)
        r.service.end(signal.SIGKILL)
        r.service.start()
        r.sleep(0.0, 2.0)


# Jobs


@fault("job deleted by hand", **_REMOTE)
def job_deleted(r: Round) -> None:
    run = _held(r, attempts={2})
    launcher = _launcher(run)
    _cluster(r).delete(_job(run))
    _lose(r, run, launcher)


@fault("job deleted while it starts", **_REMOTE)
def job_deleted_early(r: Round) -> None:
    run = r.start(attempts={1, 2})
    _ordered(r, run)
    r.sleep(0.0, 0.7)
    job = _job(run)
    if r.row(run).state not in ("succeeded", "queued"):
        _cluster(r).delete(job)


@fault("job started twice", quick=True, **_REMOTE)
def job_started_twice(r: Round) -> None:
    """The second launcher ends at once and changes nothing."""
    run = _held(r, attempts={1})
    folder = run.attempt_folder()
    python = str(r.service.settings["GENESIS_REMOTE_PYTHON"])
    command = [python, "-P", "-m", "genesis_fp16.worker.remote", str(folder / "spec.json")]
    claim = (folder / "claim.json").read_text()
    _cluster(r).duplicate(_job(run), command, folder)
    logs = [folder / "engine.log", folder / "again.log"]
    said = "has been started before"
    r.wait(
        lambda: any(said in path.read_text() for path in logs if path.exists()),
        "the second launcher to end",
    )
    r.check((folder / "claim.json").read_text() == claim, "it took the claim")
    r.go_on(run)


@fault("launcher killed", **_REMOTE)
def launcher_killed(r: Round) -> None:
    """Its worker dies with it; the run goes on in a new job."""
    run = _held(r, attempts={2})
    launcher = _launcher(run)
    os.kill(launcher, signal.SIGKILL)
    _lose(r, run, launcher)


@fault("launcher stopped for a moment", **_REMOTE)
def launcher_paused(r: Round) -> None:
    run = _held(r, attempts={1})
    launcher = _launcher(run)
    os.kill(launcher, signal.SIGSTOP)
    r.go_on(run)
    r.sleep(0.5, 3.0)
    os.kill(launcher, signal.SIGCONT)


# Machines


@fault("machine lost", **_REMOTE)
def machine_lost(r: Round) -> None:
    """With all that ran on it, perhaps the neighbour's job, too."""
    run = _held(r, attempts={2})
    launcher = _launcher(run)
    bring_back = _cluster(r).lose_node(_job(run))
    _lose(r, run, launcher)
    r.sleep(0.0, 3.0)
    bring_back()


@fault("machine drained", **_SLURM)
def machine_drained(r: Round) -> None:
    """The run checkpoints and moves; it costs no failure."""
    cluster = _slurm(r).cluster
    run = r.start(pace_seconds=0.1, attempts={2})
    r.training(run)
    with cluster.drained(cluster.node_of(_job(run))):
        r.wait(lambda: run.events("resumed"), "the run to resume elsewhere")
        (run.plan / "hurry").touch()
        r.until_ended(run)


@fault("slurmd killed and started, jobs go on", **_SLURM)
def slurmd_restarted(r: Round) -> None:
    run = _held(r, attempts={1})
    cluster = _slurm(r).cluster
    node = cluster.node_of(_job(run))
    cluster.kill_node(node, jobs=False)
    r.go_on(run)
    r.sleep(0.0, 1.0)
    cluster.start_node(node)


@fault("slurmctld killed and started", **_SLURM)
def slurmctld_killed(r: Round) -> None:
    run = _held(r, attempts={1})
    r.go_on(run)
    _slurm(r).cluster.kill_controller()


@fault("Slurm has forgotten all jobs", **_SLURM)
def slurm_forgot(r: Round) -> None:
    """slurmctld starts without its state; the nodes then kill what it does not know."""
    run = _held(r)
    _slurm(r).cluster.kill_controller(keep_state=False)
    r.sleep(0.0, 1.0)
    r.go_on(run)


@fault("job cancelled with scancel", **_SLURM)
def job_cancelled(r: Round) -> None:
    """SIGTERM first: the run checkpoints and goes on in another job."""
    run = _held_early(r, attempts={2})
    _slurm(r).cluster.ask("scancel", f"--name={_job(run)}")
    _end_when_asked(r, run)


# What the Kubernetes API server of the tests can pretend


@fault("pod evicted", **_KUBERNETES)
def pod_evicted(r: Round) -> None:
    """SIGTERM first: the run checkpoints and goes on in another pod."""
    run = _held_early(r, attempts={2})
    _kubernetes(r).server.job("evict", _job(run))
    _end_when_asked(r, run)


@fault("engine forgets a job that goes on", quick=True, **_KUBERNETES)
def job_forgotten(r: Round) -> None:
    run = _held(r, attempts={1})
    _kubernetes(r).server.job("forget", _job(run))
    r.sleep(0.0, 4.0)
    r.go_on(run)


@fault("engine forgets a job, and the run is cancelled", **_KUBERNETES)
def job_forgotten_and_cancelled(r: Round) -> None:
    """The launcher is told by file, so that no worker is left."""
    run = _held_early(r, states=frozenset({"cancelled"}))
    _kubernetes(r).server.job("forget", _job(run))
    r.check(r.service.cancel(run.id), "the request to cancel was refused")
    if r.rng.random() < 0.5:
        r.go_on(run)
        r.until_ended(run)


@fault("engine says that a job has ended which goes on", **_KUBERNETES)
def lie_about_job(r: Round) -> None:
    run = _held(r, attempts={1})
    condition = r.rng.choice(("Complete", "Failed"))
    r.note(condition)
    _kubernetes(r).server.job("claim", _job(run), condition=condition)
    r.sleep(0.0, 4.0)
    r.go_on(run)


@fault("engine answers with errors and nonsense", quick=True, **_KUBERNETES)
def bad_answers(r: Round) -> None:
    bad = r.rng.choice(
        (
            {"status": 500},
            {"status": 503},
            {"status": 429},
            {"status": 401},
            {"slow": 1.0},
            {"drip": 0.002},
            {"cut": True},
            {"html": True},
        )
    )
    count = r.rng.randint(1, 6)
    r.note(f"{count} times {bad}")
    try:
        _kubernetes(r).server.fault(count, **bad)
        run = r.start(pace_seconds=0.02, attempts={1})
        r.training(run)
    finally:
        _kubernetes(r).server.behave()


# The folder that all machines share


@fault("shared folder stalls", disk=True, **_REMOTE)
def folder_stalls(r: Round) -> None:
    """Every write waits, of daemon, launchers and workers; then all go on."""
    run = r.start(pace_seconds=0.02, attempts={1})
    when = r.rng.choice(("start", "training"))
    r.note(when)
    if when == "training":
        r.training(run)
    else:
        r.sleep(0.0, 0.8)
    seconds = r.rng.uniform(0.5, 4.0)
    r.note(f"{seconds:.1f} s")
    homes = r.service.stage.homes
    command = f"fsfreeze -f {homes}; sleep {seconds}; fsfreeze -u {homes}"
    # By another process: what is done here may itself wait for the folder.
    with subprocess.Popen(["sh", "-c", command]) as freezer:
        code = freezer.wait()
    r.check(code == 0, f"fsfreeze ended with {code}")


@fault("shared folder stalls while the daemon is killed", disk=True, **_REMOTE)
def folder_stalls_and_daemon_killed(r: Round) -> None:
    run = r.start(pace_seconds=0.02)
    r.training(run)
    homes = r.service.stage.homes
    command = f"fsfreeze -f {homes}; sleep {r.rng.uniform(0.5, 3.0)}; fsfreeze -u {homes}"
    with subprocess.Popen(["sh", "-c", command]):
        r.service.end(signal.SIGKILL)
        r.service.start()
