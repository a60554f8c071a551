"""The daemon with Kubernetes Jobs: ranks; through a bucket: rollback, its death, a pod's."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.bucket_run import live_through
from tests.genesis_fp16.executors.kubernetes_cluster import NAMESPACE, KubernetesCluster
from tests.genesis_fp16.executors.object_server import ObjectServer
from tests.patience import wait_until

pytestmark = pytest.mark.e2e

JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, quick_plugin: Path
) -> Iterator[KubernetesCluster]:
    """An API server of the tests; its images hold the quick agent."""
    with closing(KubernetesCluster(tmp_path_factory.mktemp("kubernetes"))) as cluster:
        cluster.node(environ={"PYTHONPATH": str(quick_plugin), "OMP_NUM_THREADS": "1"})
        yield cluster


@pytest.fixture
def daemon(make_daemon, cluster: KubernetesCluster, job_python: Path):
    """A daemon that runs its attempts as Jobs."""
    daemon = make_daemon()
    daemon.configure(GENESIS_REMOTE_PYTHON=job_python, **cluster.variables)
    return daemon


def test_torchrun_works_in_a_job(daemon, cluster: KubernetesCluster, train_without_end) -> None:
    daemon.configure(GENESIS_AGENTS__QUICK__PROCESSES_PER_RUN=2)
    train_without_end(daemon)
    daemon.configure(ENABLE_FP16_TRAINING="false")
    daemon.wait_for(lambda: daemon.in_precision("fp32", "flag"), "to roll back both ranks")
    newest = max(cluster.objects(JOBS), key=lambda job: int(job["metadata"]["resourceVersion"]))
    [container] = newest["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "2", "each rank has a core"
    assert daemon.stop()[0] == 0
    assert daemon.events("finished")[-1].outcome == "stopped"
    wait_until(lambda: not cluster.processes(), "the end of all containers")


def test_a_run_without_a_volume_survives_rollback_daemon_and_pod(
    daemon,
    cluster: KubernetesCluster,
    object_server: ObjectServer,
    train_without_end,
    roll_back_and_adopt,
) -> None:
    cluster.node(secrets={"bucket-keys": object_server.variables})
    daemon._environ |= object_server.variables
    daemon.configure(
        GENESIS_SHARED_URL=f"{object_server.url}/kubernetes",
        GENESIS_KUBERNETES_SECRET="bucket-keys",
        GENESIS_KUBERNETES_VOLUME_CLAIM="",
    )
    train_without_end(daemon)
    pods = cluster.objects(f"/api/v1/namespaces/{NAMESPACE}/pods")  # ended ones are kept a while
    assert [pod["status"]["phase"] for pod in pods].count("Running") == 1
    roll_back_and_adopt(daemon, "Kubernetes, through a bucket")
    live_through(daemon, lambda job: cluster.job("power_cut", job))
    assert daemon.stop()[0] == 0
    key = object_server.variables["AWS_SECRET_ACCESS_KEY"]
    assert key not in daemon.log
    pods = cluster.objects(f"/api/v1/namespaces/{NAMESPACE}/pods")
    assert key not in str(pods + cluster.objects(JOBS))
    wait_until(lambda: not cluster.processes(), "the end of all containers")
