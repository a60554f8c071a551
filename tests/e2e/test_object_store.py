"""The daemon with jobs of a real Slurm that share an object store with it, and no folder."""

import time
from pathlib import Path

import pytest

from tests.genesis_fp16.executors.contract import ROLLBACK_SECONDS
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster
from tests.patience import crowding, wait_until

pytestmark = pytest.mark.e2e


def test_a_run_survives_rollback_daemon_and_job(
    make_daemon,
    train_without_end,
    slurm_cluster: SlurmCluster,
    object_server: ObjectServer,
    record_property,
) -> None:
    daemon = make_daemon()
    daemon._environ |= slurm_cluster.variables | object_server.variables
    daemon.configure(GENESIS_EXECUTOR="slurm", GENESIS_SHARED_URL=f"{object_server.url}/e2e")
    train_without_end(daemon)
    [run] = [each["id"] for each in daemon.json("runs") if each["state"] == "running"]

    def in_precision(*expected: str) -> bool:
        labels = daemon.metrics().labels("genesis_precision_info", agent="quick")
        return [(each["effective"], each["reason"]) for each in labels] == [expected]

    def steps() -> int:
        return daemon.events("step_stats")[-1].step

    def jobs() -> list[str]:
        return [each["job"] for each in daemon.json("runs", "show", run)["attempts"]]

    daemon.configure(ENABLE_FP16_TRAINING="false")
    changed = time.monotonic()
    daemon.wait_for(lambda: in_precision("fp32", "flag"), "to roll back")
    took = time.monotonic() - changed
    record_property("measured", f"rollback of a Slurm job through an object store: {took:.1f} s")
    assert took < ROLLBACK_SECONDS * crowding()

    daemon.kill9()
    reached = steps()
    daemon.start()
    daemon.wait_for(lambda: "job_adopted" in daemon.log, "to take over the job")
    daemon.wait_for(lambda: steps() > reached, "to read on")
    daemon.configure(ENABLE_FP16_TRAINING="true")
    daemon.wait_for(lambda: in_precision("fp16", "default"), "to command the job it took over")
    assert len(daemon.events("started")) == 1

    daemon.wait_for(lambda: daemon.events("checkpoint_saved"), "to save a checkpoint")
    [job] = jobs()
    slurm_cluster.ask("scancel", "--full", "--signal=KILL", f"--name={job}")
    daemon.wait_for(lambda: daemon.events("resumed"), "to resume elsewhere")
    saved = [event.step for event in daemon.events("checkpoint_saved")]
    assert daemon.events("resumed")[-1].step in saved
    assert Path(daemon.events("resumed")[-1].path).name.startswith("step-")
    assert len(jobs()) == 2

    assert daemon.stop()[0] == 0
    assert daemon.events("finished")[-1].outcome == "stopped"
    states = ("squeue", "--noheader", "--states=running,pending")
    wait_until(lambda: not slurm_cluster.ask(*states), "the end of all jobs")
    key = object_server.variables["AWS_SECRET_ACCESS_KEY"]
    assert key not in daemon.log
