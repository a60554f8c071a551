"""What `executors check` says about a cluster."""

import time
from email.utils import formatdate
from pathlib import Path

import pytest

from genesis_fp16.executors.kubernetes import KubernetesEngine
from genesis_fp16.executors.kubernetes.checks import _clock
from tests.genesis_fp16.executors.kubernetes_cluster import KubernetesCluster

pytestmark = pytest.mark.process


def test_a_cluster_with_all_that_is_needed(
    engine: KubernetesEngine, cluster: KubernetesCluster
) -> None:
    def jobs() -> set[str]:
        found = cluster.objects("/apis/batch/v1/namespaces/training/jobs")
        return {job["metadata"]["name"] for job in found}

    of_other_tests = jobs()
    findings = engine.check()
    assert [finding for finding in findings if not finding.ok] == []
    assert findings[0].what == f"kubernetes v1.34.1 at https://127.0.0.1:{cluster.port}"
    assert jobs() <= of_other_tests, "the trial is not kept"


CASES = {
    "old": (
        {"version": {"major": "1", "minor": "24+", "gitVersion": "v1.24.3-gke"}},
        "kubernetes v1.24.3-gke",
        "1.29",
    ),
    "clock": ({"clock_offset": 60.0}, "clock is -", "synchronise"),
    "rights": (
        {"denied": ["create leases", "deletecollection pods"]},
        "in training: deletecollection pods, create leases",
        "role.yaml",
    ),
    "security": (
        {"warning": "would violate PodSecurity restricted"},
        "its pod may not be",
        "would violate PodSecurity",
    ),
}


@pytest.mark.parametrize(("behaviour", "what", "remedy"), CASES.values(), ids=CASES)
def test_what_is_lacking_is_named(
    engine: KubernetesEngine,
    cluster: KubernetesCluster,
    behaviour: dict[str, object],
    what: str,
    remedy: str,
) -> None:
    cluster.set(**behaviour)
    [lacking] = [finding for finding in engine.check() if not finding.ok]
    assert what in lacking.what
    assert remedy in lacking.remedy


def test_a_volume_that_is_not_there(cluster: KubernetesCluster, tmp_path: Path) -> None:
    engine = cluster.engine(tmp_path, kubernetes_volume_claim="other")
    [lacking] = [finding for finding in engine.check() if not finding.ok]
    assert lacking.what == "training has no PersistentVolumeClaim other"


def test_a_volume_of_one_node(engine: KubernetesEngine, cluster: KubernetesCluster) -> None:
    path = "/api/v1/namespaces/training/persistentvolumeclaims/home"
    claim = cluster.ask("GET", path)
    changed = {**claim, "spec": {"accessModes": ["ReadWriteOnce"]}}
    cluster.ask("PUT", path, changed)
    try:
        [lacking] = [finding for finding in engine.check() if not finding.ok]
        assert "use ReadWriteMany" in lacking.remedy
    finally:
        cluster.ask("PUT", path, {**claim, "metadata": {}})


def test_a_job_that_is_refused(cluster: KubernetesCluster, tmp_path: Path) -> None:
    engine = cluster.engine(tmp_path, kubernetes_namespace="elsewhere")
    lacking = [finding.remedy for finding in engine.check() if not finding.ok]
    assert any('namespaces "elsewhere" not found' in remedy for remedy in lacking)


def test_no_answer_and_no_credentials(
    engine: KubernetesEngine, cluster: KubernetesCluster, tmp_path: Path
) -> None:
    cluster.fault(status=503, message="no leader")
    [finding] = engine.check()
    assert (finding.ok, "no leader" in finding.remedy) == (False, True)
    [finding] = cluster.engine(tmp_path, kubernetes_config=tmp_path / "none").check()
    assert (finding.ok, "No such file" in finding.remedy) == (False, True)


@pytest.mark.parametrize(("seconds", "ok"), [(-20.0, True), (-40.0, False), (20.0, False)])
def test_a_slow_answer_is_no_wrong_clock(seconds: float, ok: bool) -> None:
    """The answer took 30 s; the server wrote its time so many seconds before it came."""
    asked_at = time.time() - 30.0
    assert _clock(formatdate(time.time() + seconds, usegmt=True), asked_at).ok is ok
