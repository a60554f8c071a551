"""Real child processes: started, commanded, stopped, killed with all their descendants."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import ExitStatus, Handle, LocalExecutor
from genesis_fp16.settings import Settings
from infrastructure.events import EventTail, SetPrecision
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.attempt_spec import FP32, attempt_spec
from tests.genesis_fp16.executors.contract import WorkerContract
from tests.patience import gone


@pytest.fixture
def executor(standin_command: tuple[str, ...]) -> LocalExecutor:
    return LocalExecutor(standin_command)


@pytest.fixture
def spec(home_settings: Settings) -> Callable[..., RunSpec]:
    def make(**how: object) -> RunSpec:
        return attempt_spec(home_settings, how)

    return make


@pytest.fixture
def started(executor: LocalExecutor, spec, until):
    """Start a worker and wait until it has started; all are gone afterwards."""
    handles: list[Handle] = []

    def start(**how: object) -> tuple[RunSpec, Handle]:
        made = spec(**how)
        handles.append(executor.submit(made))
        until(lambda: any(event.kind == "started" for event in EventTail(made.events_path).read()))
        return made, handles[-1]

    yield start
    for handle in handles:
        executor.kill(handle)
        until(lambda handle=handle: executor.poll(handle) is not None)


def ended(executor: LocalExecutor, handle: Handle, until) -> ExitStatus:
    statuses: list[ExitStatus | None] = []

    def over() -> bool:
        statuses.append(executor.poll(handle))
        return statuses[-1] is not None

    until(over)
    assert statuses[-1] is not None
    return statuses[-1]


class LocalCluster:
    def executor(self, worker: tuple[str, ...]) -> LocalExecutor:
        return LocalExecutor(worker)


class TestContract(WorkerContract):
    """See `WorkerContract`; the tests below have what only a process of this machine does."""

    @pytest.fixture
    def cluster(self) -> LocalCluster:
        return LocalCluster()


def test_a_worker_runs_to_its_end(executor, spec, until) -> None:
    made = spec(steps=2)
    handle = executor.submit(made)
    assert ended(executor, handle, until) == ExitStatus(exit_code=0)
    assert (made.attempt_folder / "worker.log").read_text() == "a line for the log\n"
    path = made.attempt_folder / "spec.json"
    assert RunSpec.model_validate_json(path.read_bytes()) == made
    assert path.stat().st_mode & 0o777 == 0o600, "the agent's settings may be secret"
    assert not executor.recover(handle)


def test_the_worker_is_in_its_own_session(executor, started) -> None:
    _, handle = started(hang=True)
    assert os.getsid(handle.pid) == os.getpgid(handle.pid) == handle.pid


def test_a_worker_that_does_not_read_blocks_nothing(executor, started) -> None:
    """The pipe holds 64 KiB; the rest is kept for later, and nothing blocks."""
    _, handle = started(ignore_all=True, hang=True)
    for _ in range(3000):
        executor.send(handle, SetPrecision(state=FP32))
    assert executor.poll(handle) is None


def test_a_kill_ends_all_descendants(executor, started, until) -> None:
    made, handle = started(descendants=True, ignore_all=True, hang=True)
    until((made.attempt_folder / "descendants").exists)
    pids = json.loads((made.attempt_folder / "descendants").read_text())
    assert not any(gone(pid) for pid in pids)
    executor.kill(handle)
    assert ended(executor, handle, until) == ExitStatus(signal=9)
    until(lambda: all(gone(pid) for pid in pids))


def test_descendants_end_with_their_worker(executor, started, until) -> None:
    """Even a child in its own session that was started just before the worker was killed."""
    made, handle = started(descendants=True, hang=True)
    until((made.attempt_folder / "descendants").exists)
    pids = json.loads((made.attempt_folder / "descendants").read_text())
    os.kill(handle.pid, signal.SIGKILL)
    assert ended(executor, handle, until) == ExitStatus(signal=9)
    until(lambda: all(gone(pid) for pid in pids))


def test_another_daemons_worker_is_recovered_and_killed(executor, started, until) -> None:
    _, handle = started(ignore_all=True, hang=True)
    successor = LocalExecutor()
    assert successor.recover(handle)
    assert successor.poll(handle) is None
    successor.send(handle, Stop(reason="not received"))
    successor.kill(handle)
    until(lambda: successor.poll(handle) == ExitStatus())


def test_a_later_process_with_the_same_pid_is_not_the_worker(executor) -> None:
    process = psutil.Process()
    impostor = Handle(pid=process.pid, started_at=process.create_time() - 100)
    assert not executor.recover(impostor)
    executor.kill(impostor)  # else this test would not go on
    assert executor.poll(impostor) == ExitStatus()


def test_the_end_of_the_daemon_is_the_end_of_stdin(spec, standin_command, until) -> None:
    """When the daemon is killed, its worker checkpoints and stops by itself."""
    made = spec(steps=10**9)
    (made.run_folder / "spec.in").write_text(made.model_dump_json())
    daemon = (
        "import sys, time; from pathlib import Path;"
        "from genesis_fp16.executors import LocalExecutor;"
        "from genesis_fp16.domain.run_spec import RunSpec;"
        "spec = RunSpec.model_validate_json(Path(sys.argv[1]).read_text());"
        "LocalExecutor(sys.argv[2:]).submit(spec); time.sleep(600)"
    )
    path = str(made.run_folder / "spec.in")
    process = subprocess.Popen([sys.executable, "-c", daemon, path, *standin_command])
    tail = EventTail(made.events_path)
    until(lambda: any(event.kind == "step_stats" for event in tail.read()))
    process.kill()
    process.wait(timeout=300)
    until(lambda: any(event.kind == "finished" for event in tail.read()))
    assert int(Path(made.run_folder / "step").read_text()) > 0


def test_a_missing_program_is_an_os_error(spec) -> None:
    with pytest.raises(OSError, match="no-such-program"):
        LocalExecutor(["no-such-program"]).submit(spec())
