"""What the daemon's tests share."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path

import pytest
import typer.main
from pydantic import JsonValue

from genesis_fp16.domain.run_spec import RunSpec, TrainerOptions
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from infrastructure.events import Event, EventTail, PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import Finished
from tests.genesis_fp16.new_store import new_store
from tests.genesis_fp16.postgres import in_new_schema, running_server
from tests.genesis_fp16.preloaded_worker import PreloadedWorker
from tests.patience import wait_until
from tests.preloaded import ForkedPopen, start_server

# Typer evaluates the signatures of all commands, four times each, whenever the program is called.
typer.main.get_params_from_function = cache(typer.main.get_params_from_function)

InstallPlugin = Callable[..., None]

ANY_AGENT = """
from infrastructure.agent_contract import Schedule


class AnyAgent:
    name = {name!r}
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return None

    def collect(self, context):
        yield from ()

    def build_job(self, context, transitions):
        raise NotImplementedError

    def publish(self, context, model, report):
        raise NotImplementedError
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and an environment without our settings."""
    for name in list(os.environ):
        if name.startswith(("GENESIS_", "FP16_", "ENABLE_FP16")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def any_agent() -> Callable[[str], str]:
    """Source of an agent that does nothing, by its name."""
    return lambda name: ANY_AGENT.format(name=name)


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """Put a distribution with one entry point on this process's path and on its children's."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)

    def install(
        name: str,
        source: str | None = None,
        *,
        factory: str = "AnyAgent",
        distribution: str | None = None,
        module: str | None = None,
        group: str = "genesis.agents",
    ) -> None:
        distribution = distribution or f"{name}-plugin"
        module = module or distribution.replace("-", "_")
        source = ANY_AGENT.format(name=name) if source is None else textwrap.dedent(source)
        (site / f"{module}.py").write_text(source)
        info = site / f"{distribution.replace('-', '_')}-1.5.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.5\n"
        )
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{factory}\n")

    return install


@pytest.fixture
def home_settings(tmp_path: Path) -> Settings:
    """Settings of a home of its own, with short waits."""
    return Settings(home=tmp_path / "home", retry_backoff_seconds=0.01, metrics_port=0)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Path]:
    """Folder of the socket of a real PostgreSQL server."""
    with running_server() as folder:
        yield folder


@pytest.fixture
def postgres_settings(postgres_server: Path, home_settings: Settings) -> Settings:
    """Settings of that home with a database of PostgreSQL."""
    return in_new_schema(home_settings, postgres_server)


@pytest.fixture
def database(request: pytest.FixtureRequest, home_settings: Settings) -> Settings:
    """Settings of that home: with SQLite, but see `on_each_database`."""
    if getattr(request, "param", "sqlite") == "sqlite":
        return home_settings
    return request.getfixturevalue("postgres_settings")


@pytest.fixture
def store(database: Settings) -> Iterator[Store]:
    """A new, real database for that home."""
    with closing(new_store(database)) as store:
        yield store


@pytest.fixture
def standin_command() -> tuple[str, ...]:
    """Command line of a worker that needs no torch and behaves as its settings say."""
    return (sys.executable, str(Path(__file__).with_name("standin_worker.py")))


@pytest.fixture
def until() -> Callable[[Callable[[], object]], float]:
    """Wait until something holds; see `wait_until`."""
    return wait_until


@pytest.fixture
def small_disk() -> Callable[[Path], AbstractContextManager[None]]:
    """Mount a disk of 4 MiB on a folder, which is made; only root can."""

    @contextmanager
    def mount(folder: Path) -> Iterator[None]:
        folder.mkdir(parents=True, exist_ok=True)
        mounted = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)]
        if subprocess.run(mounted, stderr=subprocess.DEVNULL, check=False).returncode:
            pytest.skip("this machine lets nobody mount a disk")
        try:
            yield
        finally:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

    return mount


def _spec(folder: Path, number: int, changes: Mapping[str, object]) -> RunSpec:
    attempt_folder = folder / "run" / f"attempt-{number}"
    settings: dict[str, JsonValue] = {}
    values: dict[str, object] = {
        "run_id": "r1",
        "attempt": number,
        "incarnation": f"i{number}",
        "agent": "line",
        "entry_point": "line_agent:LineAgent",
        "agent_folder": folder / "agent",
        "run_folder": folder / "run",
        "attempt_folder": attempt_folder,
        "seed": 3,
        "device": "cpu",
        "threads": 1,
        "precision": PrecisionState(requested="fp16", effective="fp32", reason="flag"),
        "trainer": TrainerOptions(cpu_half=True, loss_scale=65536.0),
        "budget_seconds": 600.0,
        "budget_transitions": 1000,
        "stats_interval_steps": 10,
        "baseline_interval_steps": 20,
        "checkpoint_interval_seconds": 60.0,
        "keep_checkpoints": 2,
        "settings": settings,
    }
    return RunSpec.model_validate(values | changes)


class WorkerAttempt:
    """One worker process, as the daemon has it: its stdin, its event file, its log."""

    def __init__(
        self,
        folder: Path,
        number: int,
        log: Path | None = None,
        events: Path | None = None,
        preloaded: bool = True,
        **changes: object,
    ) -> None:
        self.spec = _spec(folder, number, changes)
        attempt_folder = self.spec.attempt_folder
        attempt_folder.mkdir(parents=True)
        path = attempt_folder / "spec.json"
        path.write_text(self.spec.model_dump_json())
        self._tail = EventTail(self.spec.events_path)
        self.events: list[Event] = []
        self._readable = events is None
        if events is not None:
            self.spec.events_path.symlink_to(events)
        log = log or attempt_folder / "worker.log"
        self.process: PreloadedWorker | subprocess.Popen[bytes]
        if preloaded and self.spec.processes_per_run == 1:
            self.process = PreloadedWorker(path, log, os.environ)
            return
        module = "worker" if self.spec.processes_per_run == 1 else "worker.group"
        popen = ForkedPopen if preloaded else subprocess.Popen
        with log.open("wb") as output:
            self.process = popen(
                [sys.executable, "-P", "-m", f"genesis_fp16.{module}", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def command(self, command: SetPrecision | Stop) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def until(self, matches: Callable[[Event], bool]) -> Event:
        """Wait for an event."""
        matching: list[Event] = []

        def arrived() -> bool:
            ended = self.process.poll() is not None
            for event in self._tail.read():
                self.events.append(event)
                if matches(event):
                    matching.append(event)
                    return True
            assert not ended, f"no such event among {self.events}\n{self.log}"
            return False

        wait_until(arrived, "an event of the worker")
        return matching[0]

    def end(self) -> int:
        """Wait for the process to end by itself; its stdin stays open meanwhile."""
        wait_until(lambda: self.process.poll() is not None, "the worker to end")
        code = self.process.wait()
        if self._readable:
            self.events.extend(self._tail.read())
        return code

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), self.log
        return last

    @property
    def log(self) -> str:
        return (self.spec.attempt_folder / "worker.log").read_text()


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    """Specification of an attempt on two ranks that nobody starts."""
    return _spec(tmp_path, 1, {"processes_per_run": 2})


@pytest.fixture(scope="session")
def _preloaded() -> None:
    start_server()


@pytest.fixture
def start(
    _preloaded: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., WorkerAttempt]]:
    """Start workers of `line_agent.LineAgent`, forked after torch's import unless a test says
    otherwise; all are gone afterwards.
    """
    site = tmp_path / "site"
    site.mkdir()
    shutil.copy(Path(__file__).with_name("line_agent.py"), site)
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    started: list[WorkerAttempt] = []

    def start(number: int = 1, **changes: object) -> WorkerAttempt:
        started.append(WorkerAttempt(tmp_path, number, **changes))
        return started[-1]

    yield start
    for attempt in started:
        if attempt.process.poll() is None:
            os.killpg(attempt.process.pid, signal.SIGKILL)
            attempt.process.wait(timeout=60)
        assert attempt.process.stdin is not None
        attempt.process.stdin.close()
