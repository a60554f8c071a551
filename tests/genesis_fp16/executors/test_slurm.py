"""A real slurmctld and two slurmd: the contract, and a node that is drained."""

import pytest

from genesis_fp16.executors import ExitStatus
from genesis_fp16.executors.remote import EngineError, JobRef
from genesis_fp16.executors.slurm import SlurmEngine
from tests.genesis_fp16.executors.contract import EngineContract
from tests.genesis_fp16.executors.slurm_cluster import SlurmCluster

pytestmark = pytest.mark.process


@pytest.fixture
def cluster(slurm_cluster: SlurmCluster) -> SlurmCluster:
    return slurm_cluster


class TestContract(EngineContract):
    def test_a_drained_node_is_left_and_the_run_resumes_on_the_other(
        self, attempts, cluster: SlurmCluster
    ) -> None:
        spec, handle = attempts.start(steps=10**9)
        node = cluster.node_of(handle.job)
        with cluster.drained(node):
            assert attempts.ended(handle) == ExitStatus(exit_code=75)
            reached = int((spec.run_folder / "step").read_text())
            assert reached > 0
            again = attempts.spec(spec.run_id, 2, steps=10**9)
            second = attempts.submit(again)
            steps: list[int] = []

            def resumed(event) -> bool:
                steps.extend([event.step] if event.kind == "step_stats" else [])
                return bool(steps)

            attempts.until_event(again, resumed)
            assert steps[0] == reached + 1
            assert cluster.node_of(second.job) not in ("", node)

    def test_a_job_that_slurm_refuses_shows_why(self, attempts, cluster: SlurmCluster) -> None:
        attempts.executor.engine = SlurmEngine("--partition=nowhere")
        handle = attempts.submit(attempts.spec())
        status = attempts.ended(handle)
        assert status.exit_code == 78
        assert "invalid partition" in status.error
        assert "GENESIS_SLURM_OPTIONS" in status.error


def test_a_missing_client_is_named(slurm_cluster, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    [finding] = SlurmEngine().check()
    assert not finding.ok
    assert "sbatch" in finding.what
    with pytest.raises(EngineError, match="slurm-client"):
        SlurmEngine().stop(JobRef(name="genesis-a"))


def test_a_wrong_option_is_found_by_the_check(slurm_cluster) -> None:
    wrong = [each for each in SlurmEngine("--partition=nowhere").check() if not each.ok]
    assert "invalid partition" in wrong[0].what
