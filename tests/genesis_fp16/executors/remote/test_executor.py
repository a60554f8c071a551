"""The contract without a cluster, and what only an engine that misbehaves shows."""

import os
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.remote_attempt import CLAIM_FILE, FENCE_FILE
from genesis_fp16.domain.run_spec import SPEC_FILE
from genesis_fp16.executors import ExitStatus
from genesis_fp16.executors.remote import JobState
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.contract import LauncherContract
from tests.genesis_fp16.executors.process_engine import ProcessCluster
from tests.patience import wait_until


@pytest.fixture
def cluster() -> Iterator[ProcessCluster]:
    with closing(ProcessCluster()) as cluster:
        yield cluster


class TestContract(LauncherContract):
    def test_an_engine_that_forgets_a_living_job_does_not_end_it(self, attempts, cluster) -> None:
        _, handle = attempts.start(steps=500)
        cluster.forgotten.add(handle.job)
        assert attempts.ended(handle) == ExitStatus(exit_code=0)

    def test_a_refused_job_is_never_tried_again(self, attempts, cluster) -> None:
        cluster.refusal = "no partition gpu; see GENESIS_SLURM_OPTIONS"
        handle = attempts.submit(attempts.spec())
        assert attempts.ended(handle) == ExitStatus(exit_code=78, error=cluster.refusal)

    def test_a_job_has_a_core_for_each_rank(self, attempts, cluster) -> None:
        cluster.is_full = True
        spec = attempts.spec().model_copy(update={"processes_per_run": 3})
        handle = attempts.submit(spec)
        wait_until(lambda: handle.job in cluster.queue, "to be asked for")
        assert cluster.queue[handle.job].resources.cpus == 3
        cluster.delete(handle.job)

    def test_no_job_is_asked_for_after_the_leave_has_ended(self, attempts, cluster) -> None:
        """The next leader may have looked for it already."""
        attempts.executor.extend_lease(time.monotonic())
        attempts.executor.submit(attempts.spec())
        attempts.executor.close()  # it has made all its requests
        assert not cluster.jobs
        assert not cluster.queue

    def test_an_error_of_a_client_is_of_one_job(self, attempts, cluster, monkeypatch) -> None:
        engine = attempts.executor.engine
        monkeypatch.setattr(engine, "submit", lambda _job: 1 / 0)
        broken = attempts.submit(attempts.spec())
        status = attempts.ended(broken)
        assert status.exit_code == 78
        assert "ZeroDivisionError" in status.error
        monkeypatch.undo()
        assert attempts.ended(attempts.submit(attempts.spec(steps=1))) == ExitStatus(exit_code=0)

    def test_a_refused_job_that_was_taken_all_the_same_does_nothing(
        self, attempts, cluster, monkeypatch
    ) -> None:
        """The answer of the engine was lost or made no sense."""
        engine, tries = attempts.executor.engine, []
        take = engine.submit

        def submit(job) -> str:
            tries.append(job)
            take(job)
            raise ValueError("an answer that makes no sense")

        monkeypatch.setattr(engine, "submit", submit)
        monkeypatch.setattr(engine, "kill", lambda _job: None)  # it came too late
        with cluster.full():
            spec = attempts.spec(steps=1)
            assert attempts.ended(attempts.submit(spec)).exit_code == 78
            attempts.executor.close()
        assert len(tries) == 1
        cluster.start(cluster.queue.pop(tries[0].name))
        cluster.jobs[tries[0].name].wait(timeout=300)
        assert not (spec.attempt_folder / CLAIM_FILE).exists()

    def test_a_storage_that_fails_ends_no_attempt(self, attempts, cluster) -> None:
        spec, handle = attempts.start(steps=10**9, ignore_all=True)
        fence = spec.run_folder / FENCE_FILE
        fence.unlink()
        fence.mkdir()  # it cannot be written
        cluster.delete(handle.job)
        with capture_logs() as logs:

            def is_told() -> bool:
                assert attempts.executor.poll(handle) is None
                return any(entry["event"] == "fence_not_written" for entry in logs)

            wait_until(is_told, "the try to take the run from the job")
        fence.rmdir()
        assert "without a result" in attempts.ended(handle).error

    def test_a_job_that_was_forgotten_for_a_moment_waits_on(self, attempts, cluster) -> None:
        with cluster.full():
            handle = attempts.submit(attempts.spec(steps=1))
            wait_until(lambda: "in the queue" in attempts.executor.waiting(handle), "the queue")
            cluster.forgotten.add(handle.job)
            job = attempts.executor._jobs[handle.job]
            wait_until(lambda: job.status.state is JobState.NOT_FOUND, "that it is forgotten")
            assert "does not know" in attempts.executor.waiting(handle)
            cluster.forgotten.clear()
            wait_until(lambda: "in the queue" in attempts.executor.waiting(handle), "the queue")
            attempts.executor.send(handle, Stop(reason="cancel"))
            assert attempts.ended(handle).exit_code in (None, 75)

    def test_a_pipe_in_place_of_a_file_does_not_hold_up_the_next_daemon(self, attempts) -> None:
        spec, handle = attempts.start(steps=10**9)
        path = spec.attempt_folder / SPEC_FILE
        path.unlink()
        os.mkfifo(path)
        attempts.restart_daemon()
        assert attempts.executor.recover(handle), "a job that has started needs it no more"
        attempts.executor.send(handle, Stop(reason="shutdown"))
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
