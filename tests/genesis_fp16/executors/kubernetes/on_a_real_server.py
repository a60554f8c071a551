"""The engine against Kubernetes' own API server and controllers; run by hand.

``KUBERNETES_PROGRAMS=FOLDER python -m pytest -n 0 THIS_FILE``, where FOLDER holds the programs
``etcd``, ``kube-apiserver`` and ``kube-controller-manager``. Its name keeps it out of the suite: no
package registry has these programs. With Kubernetes 1.20.2, built with Go 1.19.8 from Debian 12's
sources, and etcd 3.5.1, all 34 tests of that time passed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from genesis_fp16.executors import ExitStatus
from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.kubernetes.checks import OLDEST
from genesis_fp16.executors.kubernetes.lease import LEASE_SECONDS, VolumeLease
from genesis_fp16.executors.remote import EngineError, JobState, RemoteExecutor
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.contract import LauncherContract, remote_executor
from tests.genesis_fp16.executors.kubernetes.real_cluster import NAMESPACE, VOLUME, RealCluster
from tests.genesis_fp16.executors.kubernetes.test_engine import (
    ENDED,
    PATIENT,
    _submit,
    _wait_for_file,
    test_a_command_runs_and_its_output_is_in_the_folder,
    test_a_command_that_fails_is_not_tried_again,
    test_a_job_of_the_same_name_is_another_one,
    test_a_job_that_is_stopping_still_runs,
    test_a_second_submission_starts_nothing,
    test_a_stop_reaches_the_command_as_sigterm,
)
from tests.patience import wait_until

__all__ = [
    "test_a_command_runs_and_its_output_is_in_the_folder",
    "test_a_command_that_fails_is_not_tried_again",
    "test_a_job_of_the_same_name_is_another_one",
    "test_a_job_that_is_stopping_still_runs",
    "test_a_second_submission_starts_nothing",
    "test_a_stop_reaches_the_command_as_sigterm",
]


@pytest.fixture(scope="module")
def real_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    programs = Path(os.environ["KUBERNETES_PROGRAMS"])
    with closing(RealCluster(programs, tmp_path_factory.mktemp("kubernetes"))) as cluster:
        yield cluster


@pytest.fixture
def engine(real_cluster: RealCluster, tmp_path: Path) -> Iterator[KubernetesEngine]:
    with closing(real_cluster.engine(tmp_path)) as engine:
        yield engine


def version(cluster: RealCluster) -> tuple[int, int]:
    reported = cluster.api.get("/version").body
    return int(reported["major"]), int(reported["minor"].rstrip("+"))


class JobCluster:
    """The cluster as the contract damages it."""

    def __init__(self, real: RealCluster, home: Path) -> None:
        self.real, self._home = real, home
        self.delete, self.full, self.unreachable = real.delete, real.full, real.unreachable

    def executor(self, worker: tuple[str, ...]) -> RemoteExecutor:
        return remote_executor(self.engine(), worker)

    def engine(self) -> KubernetesEngine:
        return self.real.engine(self._home, seconds=3.0)


class TestContract(LauncherContract):
    @pytest.fixture
    def cluster(self, real_cluster: RealCluster, tmp_path: Path) -> JobCluster:
        return JobCluster(real_cluster, tmp_path)

    def test_the_cluster_passes_its_own_checks(self, cluster: JobCluster) -> None:
        with closing(cluster.engine()) as engine:
            wrong = [finding for finding in engine.check() if not finding.ok]
        if version(cluster.real) < OLDEST:
            [finding] = wrong
            assert "may start a second pod" in finding.remedy
        else:
            assert wrong == []

    def test_a_drained_node_is_a_checkpoint(self, attempts, cluster: JobCluster) -> None:
        """Before 1.29 the Job starts a second pod meanwhile: that one changes nothing."""
        spec, handle = attempts.start(steps=10**9)
        cluster.real.evict(handle.job)
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0

    def test_a_server_that_was_killed_ends_no_run(self, attempts, cluster: JobCluster) -> None:
        spec, handle = attempts.start(steps=10**9)
        cluster.real.kill_server()
        waiting = attempts.submit(attempts.spec(steps=1))
        wait_until(lambda: "does not answer" in attempts.executor.waiting(waiting), "the reason")
        attempts.executor.send(handle, Stop(reason="shutdown"))
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0
        cluster.real.start_server()
        assert attempts.ended(waiting) == ExitStatus(exit_code=0)


def test_a_kill_ends_the_command_without_asking(
    engine: KubernetesEngine, request_of, wait_for, tmp_path: Path
) -> None:
    job = _submit(engine, request_of(PATIENT))
    wait_for(job, JobState.RUNNING)
    _wait_for_file(tmp_path / "pid")
    pid = int((tmp_path / "pid").read_text())
    engine.kill(job)
    assert wait_for(job, *ENDED).state is JobState.NOT_FOUND
    wait_until(lambda: not psutil.pid_exists(pid), "the end of the container")
    assert not (tmp_path / "stopped").exists()


def test_a_kill_frees_a_job_on_a_lost_node(
    engine: KubernetesEngine, real_cluster: RealCluster, request_of, wait_for
) -> None:
    job = _submit(engine, request_of("sleep 60"))
    wait_for(job, JobState.RUNNING)
    real_cluster.kubelet.silent = True
    try:
        engine.stop(job)
        assert engine.statuses([job])[job.name].state is JobState.RUNNING
        engine.kill(job)
        assert wait_for(job, *ENDED).state is JobState.NOT_FOUND
    finally:
        real_cluster.kubelet.silent = False


def test_a_quota_is_the_reason_for_waiting(
    engine: KubernetesEngine, real_cluster: RealCluster, request_of, wait_for
) -> None:
    quotas = real_cluster.path("resourcequotas")
    body = {"metadata": {"name": "training"}, "spec": {"hard": {"pods": "0"}}}
    real_cluster.api.post(quotas, body)
    try:
        wait_until(
            lambda: real_cluster.api.get(f"{quotas}/training").body.get("status"), "the quota"
        )
        job = _submit(engine, request_of("true"))
        wait_until(
            lambda: "exceeded quota: training" in engine.statuses([job])[job.name].reason,
            "the reason",
        )
        assert engine.statuses([job])[job.name].state is JobState.WAITING
        engine.kill(job)
        assert wait_for(job, *ENDED).state is JobState.NOT_FOUND
    finally:
        real_cluster.api.delete(f"{quotas}/training", {})


def test_a_missing_right_is_named(
    engine: KubernetesEngine, real_cluster: RealCluster, request_of, wait_for
) -> None:
    job = _submit(engine, request_of("sleep 60"))
    wait_for(job, JobState.RUNNING)
    bindings = real_cluster.path("rolebindings", "rbac.authorization.k8s.io/v1")
    binding = dict(real_cluster.api.get(f"{bindings}/genesis-fp16").body)
    real_cluster.api.delete(f"{bindings}/genesis-fp16", {})
    try:
        status = wait_for(job, JobState.UNKNOWN)
        assert 'cannot list resource "jobs"' in status.reason
        with pytest.raises(EngineError, match=r'delete resource "jobs".*role\.yaml') as caught:
            engine.stop(job)
        assert caught.value.temporary
        [rights] = [finding for finding in engine.check() if "may not in" in finding.what]
        assert "create jobs, get jobs, list jobs, delete jobs, list pods" in rights.what
    finally:
        binding["metadata"] = {"name": "genesis-fp16"}
        real_cluster.api.post(bindings, binding)
    wait_for(job, JobState.RUNNING)
    engine.kill(job)


def test_only_what_the_role_grants_is_allowed(real_cluster: RealCluster, tmp_path: Path) -> None:
    """The daemon's token opens nothing else."""
    with closing(real_cluster.engine(tmp_path)) as engine:
        api = engine._connect()
        for path in (
            real_cluster.path("secrets"),
            real_cluster.path("configmaps"),
            "/api/v1/namespaces/kube-system/pods",
            "/api/v1/nodes",
        ):
            with pytest.raises(EngineError, match="403"):
                api.get(path)


def test_pages_of_a_list_are_followed(
    engine: KubernetesEngine, request_of, wait_for, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genesis_fp16.executors.kubernetes.engine._PAGE", "2")
    jobs = [_submit(engine, request_of("sleep 60")) for _ in range(5)]
    for job in jobs:
        wait_for(job, JobState.RUNNING)
    for job in jobs:
        engine.kill(job)
        wait_for(job, JobState.NOT_FOUND)


def test_one_daemon_has_the_lease(real_cluster: RealCluster, tmp_path: Path) -> None:
    settings = real_cluster.settings(kubernetes_volume_folder="leases")
    with closing(real_cluster.engine(tmp_path)) as engine:
        api = engine._connect()
        first, second = (VolumeLease(api, NAMESPACE, settings, holder) for holder in "ab")
        first.hold()
        with pytest.raises(EngineError, match="on a holds"):
            second.hold()
        first.release()
        second.hold()
        began = time.monotonic()
        wait_until(lambda: _holds(first), "the end of a Lease that nobody renews")
        assert time.monotonic() - began >= LEASE_SECONDS
        path = real_cluster.path("leases", "coordination.k8s.io/v1")
        lease = api.get(f"{path}/genesis-fp16.{VOLUME}.leases").body
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseTransitions"]) == ("a", 2)
        with pytest.raises(EngineError, match="409") as caught:
            api.put(f"{path}/{lease['metadata']['name']}", {**lease, **_older(lease)})
        assert caught.value.temporary


def _holds(lease: VolumeLease) -> bool:
    try:
        lease.hold()
    except EngineError:
        return False
    return True


def _older(lease) -> dict[str, object]:
    return {"metadata": {**lease["metadata"], "resourceVersion": "1"}}


def test_a_wrong_token_and_a_job_that_is_invalid_are_refused(
    engine: KubernetesEngine, real_cluster: RealCluster, request_of, tmp_path: Path
) -> None:
    config = tmp_path / "config"
    config.write_text(real_cluster.config.read_text().replace('"token": "', '"token": "x'))
    with closing(real_cluster.engine(tmp_path, kubernetes_config=config)) as stranger:
        with pytest.raises(EngineError, match=r"401.*renew the token") as caught:
            stranger.submit(request_of("true"))
        assert caught.value.temporary
    pod = '{"nodeSelector": {"a b": "c"}}'
    with closing(real_cluster.engine(tmp_path, kubernetes_pod=pod)) as wrong:
        with pytest.raises(EngineError, match="422") as caught:
            wrong.submit(request_of("true"))
        assert not caught.value.temporary
        refused = [finding for finding in wrong.check() if "a Job is refused" in finding.what]
        assert len(refused) == 1


def test_the_command_executors_check_reports_what_it_finds(
    real_cluster: RealCluster, tmp_path: Path
) -> None:
    program = Path(sys.executable).with_name("genesis-fp16")
    home = tmp_path / "home"
    home.mkdir()
    done = subprocess.run(
        [program, "executors", "check", "--wait", "60"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={
            "PATH": os.environ["PATH"],
            "GENESIS_HOME": str(home),
            "GENESIS_EXECUTOR": "kubernetes",
            "GENESIS_KUBERNETES_CONFIG": str(real_cluster.config),
            "GENESIS_KUBERNETES_IMAGE": "genesis-fp16:test",
            "GENESIS_KUBERNETES_VOLUME_CLAIM": VOLUME,
        },
    )
    sys.stdout.write(done.stdout + done.stderr)
    assert "has the rights in genesis-fp16" in done.stdout
    assert "a Job is accepted in genesis-fp16" in done.stdout
    is_old = version(real_cluster) < OLDEST
    assert done.returncode == (1 if is_old else 0)
    assert ("ran a job and wrote to" in done.stdout) is not is_old
