"""What every executor keeps: classes of tests that the file of each executor inherits.

`ExecutorContract` needs a fixture ``cluster``, an `AnyCluster`. `EngineContract` needs a `Cluster`
there, whose jobs see the folders of this machine: it has what an engine itself can do wrong. A job
of a real engine takes seconds of computing, so `LauncherContract` has what no engine can change.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

import psutil
import pytest

from genesis_fp16.domain.attempt import Attempt
from genesis_fp16.domain.remote_attempt import CLAIM_FILE, RESULT_FILE
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import Executor, ExitStatus, Handle
from genesis_fp16.executors.bucket import Mirrors
from genesis_fp16.executors.job_files import write_fence
from genesis_fp16.executors.remote import Engine, JobState, RemoteExecutor, Resources
from genesis_fp16.executors.remote.executor import JobOptions, job_name
from genesis_fp16.settings import Settings
from infrastructure.events import Event, EventTail, SetPrecision
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.attempt_spec import FP32, attempt_spec
from tests.patience import crowding, gone, wait_until

ROLLBACK_SECONDS = 5.0  # from the daemon's command to the worker's acknowledgement
GRACE_SECONDS = 3.0  # shorter than in production, longer than a heartbeat
ASK_SECONDS = 0.3  # the same


class AnyCluster(Protocol):
    """A place where workers run."""

    def executor(self, worker: tuple[str, ...]) -> Executor:
        """A new executor, as a daemon that has just started makes it; *worker* is its command."""


class Cluster(AnyCluster, Protocol):
    """A cluster that tests may damage."""

    def engine(self) -> Engine:
        """A new client of the cluster."""

    def delete(self, job: str) -> None:
        """Delete the job of this name, as a person would with the cluster's own tools."""

    def unreachable(self) -> AbstractContextManager[None]:
        """Within the block the engine does not answer; jobs go on."""

    def full(self) -> AbstractContextManager[None]:
        """Within the block jobs are accepted and wait."""


def remote_executor(
    engine: Engine, worker: tuple[str, ...], mirrors: Mirrors | None = None
) -> RemoteExecutor:
    """The executor of a cluster in tests."""
    options = JobOptions(python=sys.executable, resources=Resources(), stop_seconds=6.0)
    return RemoteExecutor(
        engine,
        lambda _agent: options,
        worker=worker,
        mirrors=mirrors,
        grace_seconds=GRACE_SECONDS,
        ask_seconds=ASK_SECONDS,
    )


class Attempts:
    """Attempts of one test and the executor that runs them.

    Attributes:
        executor: The present one; a test replaces it as a daemon's restart does.
    """

    def __init__(self, cluster: AnyCluster, settings: Settings, worker: tuple[str, ...]) -> None:
        self._cluster, self._settings, self._worker = cluster, settings, worker
        self.executor = cluster.executor(worker)
        self._handles: list[Handle] = []
        self._left: list[Executor] = []

    def spec(self, run_id: str = "", number: int = 1, **how: object) -> RunSpec:
        """A new attempt, of a new run by default, whose worker behaves as *how* says."""
        return attempt_spec(self._settings, how, run_id=run_id, number=number)

    def submit(self, spec: RunSpec) -> Handle:
        handle = self.executor.submit(spec)
        self._handles.append(handle)
        return handle

    def start(self, **how: object) -> tuple[RunSpec, Handle]:
        """Start a worker and wait until it trains."""
        spec = self.spec(**how)
        handle = self.submit(spec)
        self.until_event(spec, lambda event: event.kind == "step_stats")
        return spec, handle

    def until_event(self, spec: RunSpec, matches: Callable[[Event], bool]) -> None:
        tail, seen = EventTail(spec.events_path), []

        def arrived() -> bool:
            for event in tail.read():
                seen.append(event.kind)
                if matches(event):
                    return True
            return False

        log = spec.attempt_folder / "engine.log"
        wait_until(arrived, f"an event of {spec.attempt_folder} after {seen}, see {log}")

    def roll_back(self, spec: RunSpec, handle: Handle) -> None:
        """Send the worker to FP32 and wait for its acknowledgement, which must come in time."""
        sent = time.monotonic()
        self.executor.send(handle, SetPrecision(state=FP32))
        self.until_event(
            spec, lambda event: event.kind == "precision_changed" and event.state == FP32
        )
        took = time.monotonic() - sent
        assert took < ROLLBACK_SECONDS * crowding()

    def launch(self, spec: RunSpec) -> list[str]:
        """The command of the attempt's job."""
        name = job_name(spec.agent, spec.run_id, spec.attempt, spec.incarnation)
        return list(self.executor._request(name, spec).command)  # type: ignore[attr-defined]

    def ended(self, handle: Handle) -> ExitStatus:
        """Wait for the end, polling as the dispatcher does."""
        statuses: list[ExitStatus] = []

        def over() -> bool:
            status = self.executor.poll(handle)
            statuses.extend([] if status is None else [status])
            return bool(statuses)

        wait_until(over, f"the end of {handle}")
        self._handles = [known for known in self._handles if known != handle]
        return statuses[0]

    def end_foreign(self, spec: RunSpec, folder: Path) -> Handle:
        """Have the attempt's job end as a daemon does that has another home."""
        attempt = Attempt(
            run_id=spec.run_id,
            number=spec.attempt,
            incarnation=spec.incarnation,
            started_at=time.time(),
        )
        handle = self.executor.end_foreign(spec.agent, attempt, folder)
        assert handle is not None
        return handle

    def forget(self, handle: Handle) -> None:
        """Kill it no more at the end of the test: it has ended."""
        self._handles.remove(handle)

    def restart_daemon(self) -> None:
        """Leave the executor without a word, as SIGKILL does, and make the next daemon's."""
        self._left.append(self.executor)
        self.executor = self._cluster.executor(self._worker)

    def close(self) -> None:
        left = list(self._handles)
        try:
            for handle in left:
                self.executor.kill(handle)
            for handle in left:
                self.ended(handle)
        finally:  # else their threads would ask, and log, while other tests run
            for executor in (*self._left, self.executor):
                executor.close()


def check_what_is_left(spec: RunSpec) -> None:
    """Check the files of an attempt that has run to its end."""
    assert (spec.attempt_folder / "worker.log").read_text() == "a line for the log\n"
    path = spec.attempt_folder / "spec.json"
    assert path.stat().st_mode & 0o777 == 0o600, "the agent's settings may be secret"
    kinds = [event.kind for event in EventTail(spec.events_path).read()]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"


class ExecutorContract:
    """What every executor itself can do wrong."""

    @pytest.fixture
    def attempts(
        self, cluster: AnyCluster, home_settings: Settings, standin_command: tuple[str, ...]
    ) -> Iterator[Attempts]:
        attempts = Attempts(cluster, home_settings, standin_command)
        yield attempts
        attempts.close()

    def test_a_kill_ends_the_worker_and_its_descendants(self, attempts: Attempts) -> None:
        spec = attempts.spec(hang=True, descendants=True, ignore_all=True)
        handle = attempts.submit(spec)
        path = spec.attempt_folder / "descendants"
        wait_until(path.exists, "the worker's descendants")
        attempts.executor.kill(handle)
        assert attempts.ended(handle).exit_code is None
        pids = json.loads(path.read_text())
        wait_until(lambda: all(gone(pid) for pid in pids), f"the end of {pids}")


class WorkerContract(ExecutorContract):
    """What holds for a process of this machine and for a job, whichever engine started it."""

    def test_a_worker_runs_to_its_end(self, attempts: Attempts) -> None:
        spec = attempts.spec(steps=2)
        handle = attempts.submit(spec)
        assert attempts.ended(handle) == ExitStatus(exit_code=0)
        assert attempts.executor.poll(handle) is not None, "an end stays an end"
        check_what_is_left(spec)

    @pytest.mark.parametrize(
        ("how", "status"),
        [({"exit": 78}, ExitStatus(exit_code=78)), ({"kill": 11}, ExitStatus(signal=11))],
    )
    def test_the_exit_status_is_reported(self, attempts: Attempts, how, status) -> None:
        assert attempts.ended(attempts.submit(attempts.spec(**how))) == status

    def test_commands_arrive_in_time_and_a_stop_is_obeyed(self, attempts: Attempts) -> None:
        spec, handle = attempts.start(steps=10**9)
        assert attempts.executor.poll(handle) is None
        assert attempts.executor.waiting(handle) == ""
        attempts.roll_back(spec, handle)
        attempts.executor.send(handle, Stop(reason="shutdown"))
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0, "no checkpoint was written"


class EngineContract(ExecutorContract):
    """What an engine itself can do wrong."""

    def test_an_attempt_is_submitted_once_taken_over_rolled_back_and_ended(
        self, attempts: Attempts, cluster: Cluster
    ) -> None:
        spec = attempts.spec(steps=10**9)
        handle = attempts.submit(spec)
        assert attempts.executor.submit(spec) == handle
        attempts.until_event(spec, lambda event: event.kind == "step_stats")
        engine = cluster.engine()
        first = attempts.executor._jobs[handle.job]  # type: ignore[attr-defined]
        request = attempts.executor._request(handle.job, spec)  # type: ignore[attr-defined]
        assert engine.submit(request) == first.id, "a job of this name exists"

        attempts.restart_daemon()
        assert attempts.executor.recover(handle)
        assert attempts.executor.poll(handle) is None
        assert attempts.executor.waiting(handle) == ""
        attempts.roll_back(spec, handle)

        # So does an engine announce that it takes the machine away.
        engine.stop(attempts.executor._jobs[handle.job].ref)  # type: ignore[attr-defined]
        engine.close()
        assert attempts.ended(handle) == ExitStatus(exit_code=75)
        assert int((spec.run_folder / "step").read_text()) > 0, "no checkpoint was written"
        events = [event.kind for event in EventTail(spec.events_path).read()]
        assert events.count("started") == 1

    def test_a_job_whose_files_are_in_another_home_is_ended(
        self, attempts: Attempts, cluster: Cluster, tmp_path: Path
    ) -> None:
        """Its daemon may not have recorded the job's name."""
        spec, handle = attempts.start(steps=10**9)
        pid = json.loads((spec.attempt_folder / CLAIM_FILE).read_text())["pid"]
        [worker] = psutil.Process(pid).children()
        attempts.restart_daemon()
        foreign = attempts.end_foreign(spec, tmp_path / "other-home")
        assert foreign.job == handle.job
        assert attempts.executor.poll(foreign) is None
        assert "of another home" in attempts.executor.waiting(foreign)
        assert attempts.ended(foreign) == ExitStatus()
        assert gone(worker.pid)
        assert not (tmp_path / "other-home").exists()
        attempts.forget(handle)

    def test_a_job_of_another_home_that_waits_leaves_the_queue(
        self, attempts: Attempts, cluster: Cluster, tmp_path: Path
    ) -> None:
        """It has no process that could be signalled."""
        with cluster.full():
            spec = attempts.spec(steps=1)
            handle = attempts.submit(spec)
            wait_until(lambda: "in the queue" in attempts.executor.waiting(handle), "the job")
            attempts.restart_daemon()
            foreign = attempts.end_foreign(spec, tmp_path / "other-home")
            assert attempts.ended(foreign) == ExitStatus()
            attempts.forget(handle)
        assert not spec.events_path.exists() or "started" not in spec.events_path.read_text()

    def test_an_engine_that_is_down_ends_no_run(self, attempts: Attempts, cluster) -> None:
        _, handle = attempts.start(steps=10**9)
        spec = attempts.spec(steps=2)
        with cluster.unreachable():
            client = cluster.engine()
            status = client.statuses([attempts.executor._jobs[handle.job].ref])[handle.job]
            assert status.state is JobState.UNKNOWN
            assert status.reason
            client.close()
            second = attempts.submit(spec)
            wait_until(lambda: attempts.executor.waiting(second), "a reason to wait")
            assert attempts.executor.poll(second) is None
            wait_until(attempts.executor.trouble_seconds, "the trouble to be counted")
            attempts.executor.send(handle, Stop(reason="shutdown"))  # needs no engine
            assert attempts.ended(handle) == ExitStatus(exit_code=75)
            attempts.executor.close()
            attempts.restart_daemon()
            assert attempts.executor.recover(second), "it was never asked for"
            wait_until(attempts.executor.trouble_seconds, "the next daemon's trouble")
        wait_until((spec.attempt_folder / RESULT_FILE).exists, "the result")
        wait_until(lambda: not attempts.executor.trouble_seconds(), "the end of the trouble")
        attempts.restart_daemon()
        assert attempts.executor.recover(second)
        assert attempts.ended(second) == ExitStatus(exit_code=0)
        check_what_is_left(spec)

    def test_a_job_deleted_by_hand_is_reported(self, attempts: Attempts, cluster: Cluster) -> None:
        _, handle = attempts.start(steps=10**9, ignore_all=True)
        cluster.delete(handle.job)
        status = attempts.ended(handle)
        assert status.exit_code != 0
        assert status.signal or "without a result" in status.error

    def test_a_job_that_waits_shows_why_and_can_be_cancelled(
        self, attempts: Attempts, cluster: Cluster
    ) -> None:
        with cluster.full():
            spec = attempts.spec(steps=1)
            handle = attempts.submit(spec)
            name = attempts.executor.engine.name  # type: ignore[attr-defined]
            wait_until(
                lambda: f"in the queue of {name}" in attempts.executor.waiting(handle), "a reason"
            )
            assert attempts.executor.poll(handle) is None
            attempts.executor.send(handle, Stop(reason="cancel"))
            assert attempts.ended(handle).exit_code in (None, 75)
        assert not spec.events_path.exists() or "started" not in spec.events_path.read_text()

    def test_the_cluster_passes_its_own_checks(self, cluster: Cluster) -> None:
        engine = cluster.engine()
        findings = engine.check()
        assert findings
        assert [finding for finding in findings if not finding.ok] == []
        engine.close()


class LauncherContract(WorkerContract, EngineContract):
    """What the launcher and its files do the same way whichever engine started it."""

    def test_the_next_daemon_takes_over_a_running_job(self, attempts: Attempts) -> None:
        spec, handle = attempts.start(steps=10**9)
        attempts.restart_daemon()
        assert attempts.executor.recover(handle)
        assert attempts.executor.poll(handle) is None
        attempts.executor.send(handle, SetPrecision(state=FP32))
        attempts.until_event(
            spec, lambda event: event.kind == "precision_changed" and event.state == FP32
        )
        attempts.executor.send(handle, Stop(reason="shutdown"))
        assert attempts.ended(handle) == ExitStatus(exit_code=75)

    def test_a_new_attempt_ends_the_old_one_without_a_trace(self, attempts: Attempts) -> None:
        """The old one may have been cut off, and come back."""
        spec, handle = attempts.start(steps=10**9)
        pid = json.loads((spec.attempt_folder / CLAIM_FILE).read_text())["pid"]
        [worker] = psutil.Process(pid).children()
        write_fence(spec.run_folder, "another")
        wait_until(lambda: gone(worker.pid) and gone(pid), "the end of the old attempt")
        assert not (spec.attempt_folder / RESULT_FILE).exists()
        size = spec.events_path.stat().st_size
        status = attempts.ended(handle)
        assert status.exit_code is None
        assert "without a result" in status.error
        assert spec.events_path.stat().st_size == size
        assert not (spec.run_folder / "step").exists(), "the old attempt wrote a late checkpoint"

    def test_a_second_start_of_an_attempt_changes_nothing(self, attempts: Attempts) -> None:
        """Some engines start a job twice."""
        spec, handle = attempts.start(steps=10**9)
        files = {path.name for path in spec.attempt_folder.iterdir()}
        claim = (spec.attempt_folder / CLAIM_FILE).read_text()
        again = subprocess.run(attempts.launch(spec), check=False, capture_output=True, text=True)
        assert (again.returncode, again.stdout) == (0, "")
        assert "started before" in again.stderr
        assert {path.name for path in spec.attempt_folder.iterdir()} == files
        assert (spec.attempt_folder / CLAIM_FILE).read_text() == claim
        assert attempts.executor.poll(handle) is None, "the first one goes on"

    def test_a_job_of_an_older_attempt_does_not_start(self, attempts: Attempts) -> None:
        spec = attempts.spec(steps=2)
        handle = attempts.submit(spec)
        attempts.ended(handle)
        (spec.attempt_folder / CLAIM_FILE).unlink()
        (spec.attempt_folder / RESULT_FILE).unlink()
        write_fence(spec.run_folder, "another")
        late = subprocess.run(attempts.launch(spec), check=False, capture_output=True, text=True)
        assert late.returncode == 0
        assert "another attempt" in late.stderr
        assert not (spec.attempt_folder / CLAIM_FILE).exists()
