"""Attempts as Kubernetes Jobs keep the contract of all executors."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.executors import ExitStatus
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.contract import EngineContract
from tests.genesis_fp16.executors.kubernetes_cluster import JobCluster, KubernetesCluster
from tests.patience import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def kubernetes_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubernetesCluster]:
    """A server of its own: the daemons that these tests abandon go on asking."""
    with closing(KubernetesCluster(tmp_path_factory.mktemp("contract"))) as cluster:
        yield cluster


class TestContract(EngineContract):
    @pytest.fixture
    def cluster(
        self, kubernetes_cluster: KubernetesCluster, tmp_path: Path
    ) -> Iterator[JobCluster]:
        yield JobCluster(kubernetes_cluster, tmp_path)
        kubernetes_cluster.behave()

    def test_a_server_that_forgets_a_living_job_does_not_end_it(self, attempts, cluster) -> None:
        _, handle = attempts.start(steps=500)
        cluster.server.job("forget", handle.job)
        assert attempts.ended(handle) == ExitStatus(exit_code=0)

    def test_a_server_that_lies_about_a_living_job_does_not_end_it(self, attempts, cluster) -> None:
        _, handle = attempts.start(steps=500)
        cluster.server.job("claim", handle.job, condition="Complete")
        assert attempts.ended(handle) == ExitStatus(exit_code=0)

    def test_a_second_pod_of_an_attempt_changes_nothing(self, attempts, cluster) -> None:
        spec, handle = attempts.start(steps=10**9)
        cluster.server.job("duplicate", handle.job)
        log = spec.attempt_folder / "engine.log"
        wait_until(lambda: "started before" in log.read_text(), "the second pod")
        assert attempts.executor.poll(handle) is None
        attempts.executor.send(handle, Stop(reason="shutdown"))
        assert attempts.ended(handle) == ExitStatus(exit_code=75)

    def test_a_drained_node_is_a_checkpoint(self, attempts, cluster) -> None:
        spec, handle = attempts.start(steps=10**9)
        cluster.server.job("evict", handle.job)
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0

    def test_a_power_cut_of_its_machine_costs_the_attempt(self, attempts, cluster) -> None:
        _, handle = attempts.start(steps=10**9)
        cluster.server.job("power_cut", handle.job)
        assert "without a result" in attempts.ended(handle).error
