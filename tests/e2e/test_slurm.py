"""The daemon with jobs of a real Slurm: rollback, its own death, a drained node, ranks."""

import shutil
import time
from pathlib import Path

import pytest

from benchmarks.takeover.postgres import postgres_server
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster
from tests.patience import wait_until

pytestmark = pytest.mark.e2e


def test_a_run_without_a_shared_folder_survives_rollback_daemon_and_node(
    make_daemon,
    train_without_end,
    slurm_cluster: SlurmCluster,
    object_server: ObjectServer,
    roll_back_and_adopt,
    job_python: Path,
) -> None:
    daemon = make_daemon()
    daemon._environ |= slurm_cluster.variables | object_server.variables
    daemon.configure(
        GENESIS_EXECUTOR="slurm",
        GENESIS_SHARED_URL=f"{object_server.url}/e2e",
        GENESIS_REMOTE_PYTHON=job_python,
    )
    train_without_end(daemon)

    def job() -> str:
        [attempt] = daemon.json("runs", "show", run)["attempts"][-1:]
        return attempt["job"]

    [run] = [known["id"] for known in daemon.json("runs") if known["state"] == "running"]
    assert slurm_cluster.node_of(job()) in ("n1", "n2")

    roll_back_and_adopt(daemon, "Slurm, through a bucket")
    daemon.wait_for(lambda: daemon.events("checkpoint_saved"), "to save a checkpoint")

    first = job()
    node = slurm_cluster.node_of(first)
    with slurm_cluster.drained(node):
        daemon.wait_for(lambda: daemon.events("resumed"), "to resume on the other node")
        assert slurm_cluster.node_of(job()) not in ("", node)
    saved = [event.step for event in daemon.events("checkpoint_saved")]
    assert daemon.events("resumed")[-1].step in saved
    assert Path(daemon.events("resumed")[-1].path).name.startswith("step-")
    shown = daemon.json("runs", "show", run)
    assert (shown["failures"], len(shown["attempts"])) == (0, 2), "a drained node costs no failure"

    assert daemon.stop()[0] == 0
    assert daemon.events("finished")[-1].outcome == "stopped"
    states = ("squeue", "--noheader", "--states=running,pending")
    wait_until(lambda: not slurm_cluster.ask(*states), "the end of all jobs")
    assert object_server.variables["AWS_SECRET_ACCESS_KEY"] not in daemon.log


def test_a_daemon_with_another_home_ends_the_job_of_the_lost_one(
    make_daemon,
    train_without_end,
    slurm_cluster: SlurmCluster,
    job_python: Path,
    tmp_path: Path,
    record_property,
) -> None:
    """Its run starts over there, and never trains twice at a time."""
    pytest.importorskip("psycopg")
    if shutil.which("initdb") is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres_server() as port:
        lost, next_one = make_daemon(tmp_path / "lost"), make_daemon(tmp_path / "next")
        for daemon in (lost, next_one):
            daemon._environ |= slurm_cluster.variables
            daemon.configure(
                GENESIS_EXECUTOR="slurm",
                GENESIS_REMOTE_PYTHON=job_python,
                GENESIS_DATABASE_URL=f"postgresql://postgres@127.0.0.1:{port}/postgres",
            )
        train_without_end(lost)
        [run] = [known["id"] for known in lost.json("runs") if known["state"] == "running"]
        lost.kill9()
        died, reached = time.time(), lost.events("step_stats")[-1].step
        wait_until(lambda: lost.events("step_stats")[-1].step > reached, "the job to outlive it")
        train_without_end(next_one)
        last, first = lost.events("step_stats")[-1].time, next_one.events("started")[0].time
        assert last < first
        took = f"last step {last - died:.1f} s later, next attempt {first - died:.1f} s"
        record_property("measured", f"daemon with another home: {took}")
        shown = next_one.json("runs", "show", run)
        assert (shown["state"], shown["failures"], len(shown["attempts"])) == ("running", 0, 2)
        assert slurm_cluster.node_of(shown["attempts"][0]["job"]) == ""
        assert len(lost.events("started")) == 1
        assert next_one.stop()[0] == 0


def test_torchrun_works_in_a_job(
    make_daemon, train_without_end, slurm_cluster: SlurmCluster, job_python: Path
) -> None:
    daemon = make_daemon()
    daemon._environ |= slurm_cluster.variables
    daemon.configure(
        GENESIS_EXECUTOR="slurm",
        GENESIS_REMOTE_PYTHON=job_python,
        GENESIS_AGENTS__QUICK__PROCESSES_PER_RUN=2,
    )
    train_without_end(daemon)
    daemon.configure(ENABLE_FP16_TRAINING="false")
    daemon.wait_for(lambda: daemon.in_precision("fp32", "flag"), "to roll back both ranks")
    asked = slurm_cluster.ask("squeue", "--noheader", "--states=running", "--format=%C").split()
    assert asked == ["2"], "each rank has a core"
    assert daemon.stop()[0] == 0
    assert daemon.events("finished")[-1].outcome == "stopped"
