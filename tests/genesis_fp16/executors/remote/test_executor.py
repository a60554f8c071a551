"""The contract without a cluster, and what only an engine that misbehaves shows."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from genesis_fp16.executors import ExitStatus
from tests.genesis_fp16.executors.contract import EngineContract
from tests.genesis_fp16.executors.process_engine import ProcessCluster


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    with closing(ProcessCluster()) as cluster:
        yield cluster


class TestContract(EngineContract):
    def test_an_engine_that_forgets_a_living_job_does_not_end_it(self, attempts, cluster) -> None:
        _, handle = attempts.start(steps=500)
        cluster.forgotten.add(handle.job)
        assert attempts.ended(handle) == ExitStatus(exit_code=0)

    def test_a_refused_job_is_never_tried_again(self, attempts, cluster) -> None:
        cluster.refusal = "no partition gpu; see GENESIS_SLURM_OPTIONS"
        handle = attempts.submit(attempts.spec())
        assert attempts.ended(handle) == ExitStatus(exit_code=78, error=cluster.refusal)

    def test_an_error_of_a_client_is_of_one_job(self, attempts, cluster, monkeypatch) -> None:
        engine = attempts.executor.engine
        monkeypatch.setattr(engine, "submit", lambda _job: 1 / 0)
        broken = attempts.submit(attempts.spec())
        status = attempts.ended(broken)
        assert status.exit_code == 78
        assert "ZeroDivisionError" in status.error
        monkeypatch.undo()
        assert attempts.ended(attempts.submit(attempts.spec(steps=1))) == ExitStatus(exit_code=0)
