"""A spare worker serves the next attempt, exactly as a new process would, or is not used."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import ExitStatus, Handle, LocalExecutor, local
from genesis_fp16.executors.spare import SpareWorker, Surroundings
from genesis_fp16.settings import Settings
from infrastructure.events import EventTail
from infrastructure.events.command import Stop
from tests.genesis_fp16.executors.attempt_spec import attempt_spec
from tests.patience import gone, wait_until

STANDIN = (sys.executable, str(Path(__file__).parents[1] / "standin_spare.py"))

pytestmark = pytest.mark.process


class Executors:
    """Executors with stand-ins for workers; what they have started is gone afterwards."""

    def __init__(self, settings: Settings, command: tuple[str, ...], until: Callable) -> None:
        self._settings, self._command, self._until = settings, command, until
        self._made: list[tuple[LocalExecutor, list[Handle]]] = []

    def make(self, *how: str) -> LocalExecutor:
        """An executor whose spare worker behaves so."""
        executor = LocalExecutor(self._command, (*STANDIN, *how))
        self._made.append((executor, []))
        return executor

    def with_spare(self, *how: str) -> tuple[LocalExecutor, SpareWorker]:
        """One whose spare worker is ready."""
        executor = self.make(*how)
        executor.keep_spare(True)
        spare = executor.spare
        assert spare is not None
        self._until(spare.is_ready)
        return executor, spare

    def spec(self, **how: object) -> RunSpec:
        return attempt_spec(self._settings, how)

    def submit(self, executor: LocalExecutor, spec: RunSpec) -> Handle:
        handle = executor.submit(spec)
        next(handles for known, handles in self._made if known is executor).append(handle)
        return handle

    def ended(self, executor: LocalExecutor, handle: Handle) -> ExitStatus | None:
        statuses: list[ExitStatus | None] = []
        self._until(lambda: statuses.append(executor.poll(handle)) or statuses[-1] is not None)
        return statuses[-1]

    def close(self) -> None:
        for executor, handles in self._made:
            executor.keep_spare(False)
            for handle in handles:
                executor.kill(handle)
                self._until(lambda e=executor, h=handle: e.poll(h) is not None)


@pytest.fixture
def executors(
    home_settings: Settings, standin_command: tuple[str, ...], until
) -> Iterator[Executors]:
    made = Executors(home_settings, standin_command, until)
    yield made
    made.close()


def descriptors(pid: int) -> dict[str, str]:
    """Numbers of open files to what they are, without the numbers of pipes."""
    targets = {link.name: link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()}
    return {name: str(path).split(":[")[0].rpartition("/")[2] for name, path in targets.items()}


def assert_gone(spare: SpareWorker) -> None:
    wait_until(lambda: gone(spare.process.pid), "the end of the spare worker")


def has_started(spec: RunSpec) -> bool:
    return any(event.kind == "started" for event in EventTail(spec.events_path).read())


def test_it_becomes_a_worker_like_any_other(executors: Executors, until) -> None:
    executor, spare = executors.with_spare()
    waiting_since = psutil.Process(spare.process.pid).create_time()
    spec, cold_spec = executors.spec(hang=True), executors.spec(hang=True)
    handle, cold = (executors.submit(executor, job) for job in (spec, cold_spec))
    assert handle == Handle(pid=spare.process.pid, started_at=waiting_since)
    assert cold.pid != handle.pid, "there was one spare for two runs"
    assert executor.spare is None
    until(lambda: has_started(spec) and has_started(cold_spec))
    assert LocalExecutor().recover(handle)
    assert os.getsid(handle.pid) == os.getpgid(handle.pid) == handle.pid
    assert descriptors(handle.pid) == descriptors(cold.pid)
    log = (spec.attempt_folder / "worker.log").read_text()
    assert log.startswith("imported\n"), "what the imports print is kept"
    assert (cold_spec.attempt_folder / "worker.log").read_text() in log
    executor.kill(handle)
    assert executors.ended(executor, handle) == ExitStatus(signal=9)


def test_commands_that_are_sent_at_once_arrive(executors: Executors) -> None:
    executor, _ = executors.with_spare()
    handle = executors.submit(executor, executors.spec(steps=10**9))
    executor.send(handle, Stop(reason="shutdown"))
    assert executors.ended(executor, handle) == ExitStatus(exit_code=75)


def test_one_that_still_imports_is_not_waited_for(executors: Executors) -> None:
    executor = executors.make("hang")
    executor.keep_spare(True)
    spare = executor.spare
    assert spare is not None
    handle = executors.submit(executor, executors.spec(steps=1))
    assert handle.pid != spare.process.pid
    assert executor.spare is spare
    assert executors.ended(executor, handle) == ExitStatus(exit_code=0)


@pytest.mark.parametrize("what", ["variable", "umask", "installed", "package", "file", "removed"])
def test_one_that_differs_from_a_new_process_is_not_used(
    executors: Executors, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = tmp_path / "site"
    site.mkdir()
    module = site / "imported_by_the_spare.py"
    module.write_text("")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    executor, spare = executors.with_spare(*([module.stem] if what in ("file", "removed") else []))
    (site / "notes.txt").write_text("changes nothing")
    (site / ".cache").mkdir()  # as tools write, and no import can find
    assert spare.outdated() == ""
    if what == "variable":
        monkeypatch.setenv("API_TOKEN", "secret")
    elif what == "umask":
        before = os.umask(0o077)
    elif what == "installed":
        (site / "another.dist-info").mkdir()
    elif what == "package":
        (site / "another").mkdir()
    elif what == "file":
        module.write_text("x = 1")
    else:
        module.unlink()
    try:
        with capture_logs() as logs:
            handle = executors.submit(executor, executors.spec(steps=1))
    finally:
        if what == "umask":
            os.umask(before)
    assert handle.pid != spare.process.pid
    assert_gone(spare)
    reason = {
        "variable": "environment variables changed: API_TOKEN",
        "umask": "limits, priority, rights, control group or working folder changed",
        "installed": "something was installed or removed",
        "package": "something was installed or removed",
    }.get(what, f"{module} changed")
    assert [(line["event"], line["reason"]) for line in logs] == [("spare_discarded", reason)]
    assert executors.ended(executor, handle) == ExitStatus(exit_code=0)


def test_a_file_that_changes_while_it_is_imported_counts_as_changed(
    executors: Executors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "changing.py").write_text("open(__file__, 'a').write('# changed\\n')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    _, spare = executors.with_spare("changing")
    assert spare.outdated() == f"{tmp_path / 'changing.py'} changed"


def test_a_dead_one_costs_nothing_but_a_line_in_the_log(executors: Executors, until) -> None:
    executor, spare = executors.with_spare()
    spare.process.kill()
    until(lambda: psutil.Process(spare.process.pid).status() == psutil.STATUS_ZOMBIE)
    handle = executors.submit(executor, executors.spec(steps=1))
    assert handle.pid != spare.process.pid
    assert executors.ended(executor, handle) == ExitStatus(exit_code=0)

    failing = executors.make("die")
    failing.keep_spare(True)
    with capture_logs() as logs:
        until(lambda: failing.keep_spare(True) or failing.spare is None)
        failing.keep_spare(True)
    assert failing.spare is None, "the next try comes a minute later"
    assert logs[0]["event"] == "spare_failed"
    assert logs[0]["error"] == "it ended with exit code 1: torch is broken"


def test_one_that_hangs_is_given_up(executors: Executors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("genesis_fp16.executors.spare._IMPORT_SECONDS", 0.0)
    executor = executors.make("hang")
    executor.keep_spare(True)
    spare = executor.spare
    assert spare is not None
    executor.keep_spare(True)
    assert executor.spare is None
    assert_gone(spare)


def test_a_full_temporary_disk_costs_no_run(
    executors: Executors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "missing"))
    executor = executors.make()
    with capture_logs() as logs:
        executor.keep_spare(True)
    assert (executor.spare, logs[0]["event"]) == (None, "spare_failed")
    handle = executors.submit(executor, executors.spec(steps=1))
    assert executors.ended(executor, handle) == ExitStatus(exit_code=0)


def test_several_ranks_start_cold(
    executors: Executors, standin_command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "GROUP_COMMAND", standin_command)
    executor, spare = executors.with_spare()
    spec = executors.spec(steps=1).model_copy(update={"processes_per_run": 2})
    handle = executors.submit(executor, spec)
    assert handle.pid != spare.process.pid
    assert executor.spare is spare
    assert executors.ended(executor, handle) == ExitStatus(exit_code=0)


def test_it_ends_when_none_is_wanted(executors: Executors) -> None:
    executor, spare = executors.with_spare()
    executor.keep_spare(False)
    assert executor.spare is None
    assert_gone(spare)


DAEMON = """
import sys, time
from pathlib import Path
from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.executors import LocalExecutor
worker, standin, spec, *how = sys.argv[1:]
executor = LocalExecutor([sys.executable, worker], [sys.executable, standin, *how])
executor.keep_spare(True)
while "hang" not in how and not executor.spare.is_ready():
    time.sleep(0.01)
print(executor.spare.process.pid, flush=True)
if "hang" not in how:
    executor.submit(RunSpec.model_validate_json(Path(spec).read_text()))
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
@pytest.mark.parametrize("used", [False, True])
def test_it_ends_with_its_daemon_unless_it_has_a_run_to_save(
    executors: Executors, standin_command: tuple[str, ...], used: bool, until
) -> None:
    spec = executors.spec(steps=10**9)
    path = spec.run_folder / "spec.in"
    path.write_text(spec.model_dump_json())
    arguments = [standin_command[1], STANDIN[1], str(path), *([] if used else ["hang"])]
    daemon = subprocess.Popen([sys.executable, "-c", DAEMON, *arguments], stdout=subprocess.PIPE)
    assert daemon.stdout is not None
    spare = int(daemon.stdout.readline())
    if used:
        until(lambda: has_started(spec))
    daemon.kill()
    daemon.wait(timeout=300)
    daemon.stdout.close()
    until(lambda: gone(spare))
    finished = [e for e in EventTail(spec.events_path).read() if e.kind == "finished"]
    assert [event.outcome for event in finished] == (["stopped"] if used else [])


def test_the_surroundings_are_those_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Surroundings.now()
    assert before.difference(Surroundings.now()) == ""
    monkeypatch.setenv("ONE", "1")
    monkeypatch.delenv("PATH")
    assert before.difference(Surroundings.now()) == "environment variables changed: ONE, PATH"
