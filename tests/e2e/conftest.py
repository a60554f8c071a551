"""The real daemon in a real process, with a home, a settings file and a port of its own."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.measuring.ports import free_port
from infrastructure.events import Event, EventTail
from tests.e2e.job_server import forked_python
from tests.genesis_fp16.executors.contract import ROLLBACK_SECONDS
from tests.patience import crowding, wait_until
from tests.preloaded import ForkedPopen

BIN = Path(sys.executable).parent


class Metrics:
    """One scrape."""

    def __init__(self, text: str) -> None:
        self._samples = [s for f in text_string_to_metric_families(text) for s in f.samples]

    def labels(self, name: str, **labels: str) -> list[dict[str, str]]:
        """Label sets of the series *name* that have *labels* and are not 0."""
        return [
            sample.labels
            for sample in self._samples
            if sample.name == name and sample.value and labels.items() <= sample.labels.items()
        ]

    def value(self, name: str, **labels: str) -> float:
        """Sum of the series *name* that have *labels*; not a number where there is none."""
        values = [
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(values) if values else float("nan")


class Daemon:
    """`genesis-fp16` in the folder *folder*, told everything by the settings file there.

    It is the console script in *bin_folder*. That of this environment, and what it starts, is
    forked from a process that has imported torch; another is started as an operator starts it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        bin_folder: Path = BIN,
        python_path: Path | None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.home, self.log_path = folder, folder / "home", folder / "daemon.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._program = bin_folder / "genesis-fp16"
        self._environ = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        self._environ |= {"OMP_NUM_THREADS": "1"}
        if python_path is not None:
            self._environ["PYTHONPATH"] = str(python_path)
        self.port = free_port()
        self.settings: dict[str, object] = {
            "GENESIS_HOME": self.home,
            "GENESIS_METRICS_PORT": self.port,
            "GENESIS_WORKER_THREADS": 1,
            "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 1,
            "GENESIS_RETRY_BACKOFF_SECONDS": 0.2,
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
        }
        self.configure()

    def configure(self, **settings: object) -> None:
        """Change settings in the file by swapping it, as most editors do."""
        self.settings |= settings
        written = self.folder / ".env.new"
        written.write_text("".join(f"{name}={value}\n" for name, value in self.settings.items()))
        written.rename(self.folder / ".env")

    def start(self) -> "Daemon":
        """Start ``serve`` and wait until it says that it is ready."""
        with self.log_path.open("ab") as log:
            self.process = ForkedPopen(
                [self._program, "serve"],
                cwd=self.folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.wait_for(lambda: self.get("/readyz")[0] == 200, "to be ready")
        return self

    @property
    def log(self) -> str:
        """All that the daemon has printed."""
        return self.log_path.read_text() if self.log_path.exists() else ""

    def get(self, path: str) -> tuple[int, str]:
        """Status and body of the listener's answer; status 0 while it does not listen."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}{path}", timeout=60
            ) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refusal:
            with refusal:
                return refusal.code, refusal.read().decode()
        except OSError:
            return 0, ""

    def metrics(self) -> Metrics:
        """A scrape of now."""
        return Metrics(self.get("/metrics")[1])

    def in_precision(self, *expected: str) -> bool:
        """Whether *expected* are the effective precision of the quick agent and its reason."""
        labels = self.metrics().labels("genesis_precision_info", agent="quick")
        return [(shown["effective"], shown["reason"]) for shown in labels] == [expected]

    def events(self, kind: str) -> list[Event]:
        """Events of *kind* of all attempts, oldest first."""
        events = [
            event
            for path in self.home.rglob("events.ndjson")
            if not path.is_symlink() and "rung" not in path.parts  # a search beside an attempt
            for event in EventTail(path).read()
            if event.kind == kind
        ]
        return sorted(events, key=lambda event: event.time)

    def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one command of the program in the daemon's folder, forked if it is installed here."""
        command = [self._program, *arguments]
        with ForkedPopen(
            command,
            cwd=self.folder,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=300)
            finally:
                process.kill()  # leaving the block waits for its end
        return subprocess.CompletedProcess(command, process.returncode, output, errors)

    def json(self, *arguments: str):
        """What a command answers with ``--json``."""
        done = self.cli(*arguments, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def wait_for(self, holds: Callable[[], object], what: str) -> float:
        """Wait until *holds* is true and say how many seconds that took; see `wait_until`."""

        def alive_and_holds() -> object:
            ended = self.process is None or self.process.poll() is not None
            assert not ended, f"the daemon ended before it was seen {what}"
            return holds()

        try:
            return wait_until(alive_and_holds, f"the daemon {what}")
        except AssertionError as error:
            pytest.fail(f"{error}\n{self.log[-6000:]}")

    def stop(self, number: int = signal.SIGINT) -> tuple[int, float]:
        """Ask the daemon to stop; its exit code, and the seconds it would have taken alone."""
        begun = time.monotonic()
        self.process.send_signal(number)
        wait_until(lambda: self.process.poll() is not None, "the daemon to end")
        return self.process.returncode, (time.monotonic() - begun) / crowding()

    def kill9(self) -> None:
        """End the daemon alone, as the kernel would when memory runs out."""
        self.process.kill()
        self.process.wait(timeout=300)

    def worker(self) -> psutil.Process | None:
        """The newest worker if it is alive."""
        started = self.events("started")
        try:
            process = psutil.Process(started[-1].pid)
            ours = process.create_time() < started[-1].time  # else another process got its pid
        except (IndexError, psutil.Error):
            return None
        return process if ours and process.status() != psutil.STATUS_ZOMBIE else None

    def clean_up(self) -> None:
        """Leave no process behind, whatever the test did."""
        if self.process is not None and self.process.poll() is None:
            self.kill9()
        worker = self.worker()
        if worker is not None:
            worker.kill()


def install_quick_agent(folder: Path) -> None:
    """Write the quick agent into *folder* as an installer would."""
    shutil.copy(Path(__file__).with_name("quick_agent.py"), folder)
    metadata = folder / "quick_agent-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: quick-agent\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[genesis.agents]\nquick = quick_agent:QuickAgent\n")


@pytest.fixture(scope="session")
def quick_plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds the quick agent as installed: put it on the path."""
    folder = tmp_path_factory.mktemp("quick")
    install_quick_agent(folder)
    return folder


@pytest.fixture(scope="session")
def job_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Python of jobs, see `forked_python`; the contract of executors starts the real one."""
    with forked_python(tmp_path_factory.mktemp("jobs")) as path:
        yield path


@pytest.fixture(scope="session")
def daemon_class() -> type[Daemon]:
    """For a daemon that many tests share; whoever makes one calls its `clean_up`."""
    return Daemon


@pytest.fixture
def make_daemon(tmp_path: Path, quick_plugin: Path) -> Iterator[Callable[..., Daemon]]:
    """Build daemons, not yet started, that see the quick agent; all are gone afterwards."""
    made: list[Daemon] = []

    def make(folder: Path = tmp_path / "daemon", **options: object) -> Daemon:
        made.append(Daemon(folder, **({"python_path": quick_plugin} | options)))
        return made[-1]

    yield make
    for daemon in made:
        daemon.clean_up()


@pytest.fixture
def daemon(make_daemon: Callable[..., Daemon]) -> Daemon:
    """A daemon that will run the quick agent at once, and again and again."""
    daemon = make_daemon()
    daemon.configure(GENESIS_AGENTS__QUICK__SCHEDULE='"every 1s"')
    return daemon


@pytest.fixture(scope="session")
def train_without_end() -> Callable[[Daemon], Daemon]:
    """Have a daemon's quick agent train without end, in FP16 on the CPU, past its overflows.

    The loss scale begins far too high, so the first steps overflow and it backs off: the
    overflows are real. Then it stays, since growth is far away.
    """

    def steps(daemon: Daemon) -> float:
        return daemon.metrics().value("genesis_fp16_training_steps_total", agent="quick")

    def train(daemon: Daemon) -> Daemon:
        daemon.configure(
            ENABLE_FP16_TRAINING="true",
            GENESIS_CPU_HALF="true",
            FP16_LOSS_SCALE=2.0**34,
            FP16_GROWTH_INTERVAL=10_000_000,
            GENESIS_AGENTS__QUICK__SCHEDULE='"every 1s"',
            GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS=1_000_000,
            GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH=250,
            GENESIS_AGENTS__QUICK__SETTINGS__PAUSE_SECONDS=0.02,  # others need the core
        )
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start()
        daemon.wait_for(lambda: steps(daemon) > 50, "to train in FP16")
        return daemon

    return train


@pytest.fixture
def roll_back_and_adopt(
    record_property: Callable[[str, object], None],
) -> Callable[[Daemon, str], None]:
    """Roll back a run that trains as a job, kill its daemon, and have the next one take it over.

    The last argument names the engine.
    """

    def play(daemon: Daemon, engine: str) -> None:
        def step() -> int:
            return daemon.events("step_stats")[-1].step

        daemon.configure(ENABLE_FP16_TRAINING="false")
        changed = time.monotonic()
        daemon.wait_for(lambda: daemon.in_precision("fp32", "flag"), "to roll back")
        took = time.monotonic() - changed
        record_property("measured", f"rollback of a job of {engine}: {took:.1f} s")
        assert took < ROLLBACK_SECONDS * crowding()

        daemon.kill9()
        reached = step()
        daemon.start()
        daemon.wait_for(lambda: "job_adopted" in daemon.log, "to take over the job")
        daemon.wait_for(lambda: step() > reached, "to read on")
        daemon.configure(ENABLE_FP16_TRAINING="true")
        daemon.wait_for(lambda: daemon.in_precision("fp16", "default"), "to command the job")
        assert len(daemon.events("started")) == 1

    return play


@pytest.fixture(scope="module")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory, quick_plugin: Path) -> Iterator[Daemon]:
    """A daemon for the tests of a module, not yet started: a start and a run take seconds."""
    daemon = Daemon(tmp_path_factory.mktemp("shared") / "daemon", python_path=quick_plugin)
    yield daemon
    daemon.clean_up()


@pytest.fixture
def training(shared_daemon: Daemon, train_without_end: Callable[[Daemon], Daemon]) -> Daemon:
    """The module's daemon, whose one run trains; a test leaves it so, or stopped."""
    return train_without_end(shared_daemon)
