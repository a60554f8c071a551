"""The daemon as a process: what it logs, refuses and survives."""

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from rich.console import Console

from genesis_fp16.daemon import daemon as service
from genesis_fp16.daemon.run_log import RunLogger
from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.pause import Pause
from genesis_fp16.domain.run import RunState
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.watch import PluginWatch
from genesis_fp16.settings import Settings
from genesis_fp16.store import Store
from genesis_fp16.store.daemon_status import find_daemon
from genesis_fp16.system.signals import Signals
from infrastructure.events import EventWriter
from infrastructure.events.event import StepStats
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process

PROGRAM = Path(sys.executable).with_name("genesis-fp16")
STORM = StepStats(step=100, applied=40, overflow=60, fp16=100, loss_scale=4.0, precision="fp16")
NEXT_TO_NOTHING = 100 << 20  # bytes of memory


class Daemon:
    """`serve` in a process with the settings file given; *forked* after all imports, or started."""

    def __init__(
        self, folder: Path, until: Callable[..., None], *, forked: bool = True, **environ: str
    ) -> None:
        self.folder, self._until = folder, until
        self._log = folder / f"log{len(list(folder.glob('log*')))}"  # of it alone
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "PYTHONPATH")}
        start = ForkedPopen if forked else subprocess.Popen
        with self._log.open("w") as log:
            self.process = start(
                [PROGRAM, "serve"],
                cwd=folder,
                env=kept | environ,
                stdin=subprocess.DEVNULL,
                stderr=log,
            )

    def lines(self, event: str) -> list[dict]:
        """Log lines of that event."""
        found = []
        for line in self._log.read_text().splitlines():
            if line.startswith("{") and line.endswith("}"):
                found.append(json.loads(line))
        return [line for line in found if line["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict:
        def there() -> bool:
            assert self.process.poll() is None, self._log.read_text()
            return len(self.lines(event)) >= count

        self._until(there, event)
        return self.lines(event)[-1]

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and its log."""
        return self.process.wait(timeout=300), self._log.read_text()

    def get(self, path: str) -> str:
        """The listener's answer, whatever its status."""
        address = urlsplit(self.lines("listener_started")[-1]["metrics"]).netloc
        with closing(HTTPConnection(address, timeout=60)) as connection:
            connection.request("GET", path)
            return connection.getresponse().read().decode().strip()

    def last_tick(self) -> str:
        """The line that tells when the loop last came round."""
        lines = self.get("/metrics").splitlines()
        return next(line for line in lines if line.startswith("genesis_loop_last_tick"))


@pytest.fixture
def start(tmp_path: Path, until) -> Iterator[Callable[..., Daemon]]:
    """Start a daemon in a folder of its own; all are gone afterwards."""
    started: list[Daemon] = []

    def start(
        folder: Path | None = None, settings: str = "", *, forked: bool = True, **environ: str
    ) -> Daemon:
        folder = folder or tmp_path / f"daemon{len(started)}"
        folder.mkdir(exist_ok=True)
        (folder / ".env").write_text(
            f"GENESIS_METRICS_PORT=0\nGENESIS_AGENTS__SE_DARWIN__ENABLED=false\n{settings}"
        )
        started.append(Daemon(folder, until, forked=forked, **environ))
        return started[-1]

    yield start
    for daemon in started:
        if daemon.process.poll() is None:
            daemon.process.kill()
        daemon.process.wait(timeout=300)


@pytest.fixture
def notices() -> Iterator[socket.socket]:
    """Where systemd would listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notices:
        notices.bind(f"\0genesis-test-{os.getpid()}")
        notices.settimeout(300)
        yield notices


def test_a_life_under_systemd(start, install_plugin, until, notices) -> None:
    """Ready, watched, reloaded, stopped; every notice in order, and little memory."""
    install_plugin("any")
    address = notices.getsockname().decode().replace("\0", "@")
    daemon = start(forked=False, NOTIFY_SOCKET=address)
    assert notices.recv(100) == b"READY=1"
    assert notices.recv(100) == b"WATCHDOG=1"

    def probed() -> bool:
        while notices.recv(100) != b"WATCHDOG=1":  # read, as systemd does
            pass
        return bool(daemon.lines("plugins_probed") and daemon.lines("precision_resolved"))

    until(probed)
    assert daemon.wait_for("plugin_ready")["agent"] == "any"
    until(lambda: "se-darwin" in {line["agent"] for line in daemon.lines("plugin_disabled")})
    assert daemon.wait_for("agent_scheduled")["schedule"] == "every 1h"
    precision = daemon.wait_for("precision_resolved")
    assert precision["requested"] == "fp16"
    until(lambda: daemon.get("/readyz") == "serving")
    assert "genesis_leader 1.0" in daemon.get("/metrics")
    assert psutil.Process(daemon.process.pid).memory_info().rss < NEXT_TO_NOTHING

    (daemon.folder / ".env").write_text(
        "ENABLE_FP16_TRAINING=false\nGENESIS_SLOTS=9\nGENESIS_CANARY_AGENTS=nosuch\n"
    )
    daemon.process.send_signal(signal.SIGHUP)
    while b"RELOADING=1" not in notices.recv(100):
        pass
    assert notices.recv(100) in (b"READY=1", b"WATCHDOG=1")
    until(lambda: len(daemon.lines("settings_reloaded")) == 2)
    flag, rest = (line["changed"] for line in daemon.lines("settings_reloaded"))
    assert flag == {"ENABLE_FP16_TRAINING": "true -> false"}, "the flag first"
    assert rest == {"GENESIS_CANARY_AGENTS": "(empty) -> nosuch"}
    warned = daemon.wait_for("canaries_not_found")
    assert (warned["canaries"], warned["ready_agents"]) == (["nosuch"], ["any"])
    assert (warned["level"], warned["effect"]) == ("error", "every agent stays in FP32")
    assert "GENESIS_SLOTS" in daemon.wait_for("settings_deferred")["settings"]
    assert daemon.lines("precision_resolved")[-1]["reason"] == "flag"

    daemon.process.send_signal(signal.SIGTERM)
    while not (notice := notices.recv(100)).startswith(b"STOPPING=1\n"):
        pass
    assert notice.endswith(b"EXTEND_TIMEOUT_USEC=9800000")  # a checkpoint, and the end
    code, log = daemon.end()
    assert code == 0
    assert "Traceback" not in log
    assert daemon.lines("daemon_stopped")


def test_one_daemon_per_home_and_per_port(start, until) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        code, log = start(settings=f"GENESIS_METRICS_PORT={port}\n").end()
        assert code == 78
        assert f"127.0.0.1:{port}" in log
        assert "GENESIS_METRICS_PORT" in log
        assert "Traceback" not in log

    first = start()
    first.wait_for("listener_started")
    code, log = start(first.folder).end()
    assert code == 73
    assert f"pid {first.process.pid}" in log
    assert "Traceback" not in log


def test_a_stop_during_the_start_does_not_wait_for_a_hanging_plugin(start, install_plugin) -> None:
    install_plugin("hangs", "import time; time.sleep(600)")
    daemon = start(settings="GENESIS_PROBE_TIMEOUT_SECONDS=300\n")
    daemon.wait_for("listener_started")
    daemon.process.send_signal(signal.SIGINT)
    code, log = daemon.end()
    assert code == 0
    assert "Traceback" not in log


def test_it_serves_while_plugins_are_probed(start, install_plugin, until) -> None:
    """It obeys the flag, and a stop ends the probes with their children."""
    install_plugin("hangs", "import subprocess; subprocess.run(['sleep', '600'])")
    daemon = start(settings="GENESIS_PROBE_TIMEOUT_SECONDS=300\n")
    daemon.wait_for("daemon_ready")
    until(lambda: daemon.get("/readyz") == "serving")
    (daemon.folder / ".env").write_text("ENABLE_FP16_TRAINING=false\n")
    assert "ENABLE_FP16_TRAINING" in daemon.wait_for("settings_reloaded")["changed"]
    process = psutil.Process(daemon.process.pid)

    def children() -> list[psutil.Process]:
        return process.children(recursive=True)

    def hangs() -> bool:
        with suppress(psutil.NoSuchProcess):  # another child has ended meanwhile
            return any(child.name() == "sleep" for child in children())
        return False

    until(hangs, "the probe to hang")
    probing = children()
    daemon.process.send_signal(signal.SIGTERM)
    code, log = daemon.end()
    assert code == 0
    assert "Traceback" not in log
    psutil.wait_procs(probing, timeout=60)
    assert [child.pid for child in probing if child.is_running()] == []


def test_agents_come_and_go_while_it_serves(start, install_plugin, until, tmp_path: Path) -> None:
    install_plugin("a")
    daemon = start()
    assert daemon.wait_for("plugin_ready")["agent"] == "a"
    with (daemon.folder / ".env").open("a") as file:
        file.write("GENESIS_AGENTS__A__SCHEDULE=every 5m\nGENESIS_AGENTS__B__SCHEDULE=every 7m\n")
        file.write("GENESIS_AGENTS__A__PARALLEL=fsdp2\n")
    assert "GENESIS_AGENTS__B__SCHEDULE" in daemon.wait_for("settings_reloaded")["changed"]
    assert daemon.wait_for("settings_deferred")["settings"] == ["GENESIS_AGENTS__A__PARALLEL"]
    install_plugin("b")
    assert daemon.wait_for("plugin_ready", 2)["agent"] == "b"
    daemon.wait_for("agent_scheduled", 3)
    schedules = [(line["agent"], line["schedule"]) for line in daemon.lines("agent_scheduled")]
    assert schedules == [("a", "every 1h"), ("a", "every 5m"), ("b", "every 7m")]

    (tmp_path / "site" / "a_plugin-1.5.dist-info" / "METADATA").parent.rename(tmp_path / "away")
    until(lambda: [line for line in daemon.lines("plugin_pending") if line["agent"] == "a"])
    with closing(Store.open(Settings(home=daemon.folder / ".genesis"))) as store:
        run = store.enqueue("a", first_seed=0)
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.wait_for("plugin_removed")["agent"] == "a"
        until(lambda: store.run(run.id).state is RunState.CANCELLED)
        assert "the agent a is not installed" in store.run(run.id).error
    for gone in ("genesis_plugin_up", "next_run_timestamp_seconds"):
        until(lambda gone=gone: f'{gone}{{agent="a"}}' not in daemon.get("/metrics"))
    assert 'genesis_plugin_up{agent="b"} 1.0' in daemon.get("/metrics")


def test_a_paused_agent_waits_through_a_restart_and_is_caught_up_on(
    start, install_plugin, until, tmp_path: Path
) -> None:
    install_plugin("any")
    folder = tmp_path / "daemon0"
    settings = "GENESIS_AGENTS__ANY__SCHEDULE=every 1s\nGENESIS_MAX_ATTEMPTS=1\n"
    with closing(Store.open(Settings(home=folder / ".genesis"))) as store:
        store.pauses.begin(Pause(agent="any", reason="moving", actor="ann", created_at=1.0))
        for _ in range(2):
            daemon = start(folder, settings)
            assert daemon.wait_for("agent_paused")["reason"] == "moving"
            daemon.wait_for("plugin_ready")
            until(lambda daemon=daemon: 'agent_paused{agent="any"} 1.0' in daemon.get("/metrics"))
            daemon.process.terminate()
            assert daemon.end()[0] == 0
        daemon = start(folder, settings)
        daemon.wait_for("plugin_ready")
        assert store.runs() == []
        store.pauses.end("any", actor="ann", reason="moved")
        assert daemon.wait_for("agent_resumed")["agent"] == "any"
        until(lambda: any(run.finished for run in store.runs()))
        assert 'genesis_agent_paused{agent="any"} 0.0' in daemon.get("/metrics")


def test_a_prewarmed_worker_serves_a_run_and_ends_with_the_daemon(
    start, install_plugin, until
) -> None:
    install_plugin("any")
    settings = "GENESIS_PREWARM=true\nGENESIS_MAX_ATTEMPTS=1\n"
    daemon = start(settings=f"{settings}GENESIS_AGENTS__ANY__SCHEDULE=every 1s\n")
    used = daemon.wait_for("spare_used")["pid"]
    children = psutil.Process(daemon.process.pid).children()
    until(lambda: len(daemon.lines("run_ended")) > 0)
    daemon.process.terminate()
    assert daemon.end()[0] == 0
    assert used not in {line["pid"] for line in daemon.lines("spare_discarded")}
    assert not psutil.wait_procs(children, timeout=300)[1]


def test_a_device_that_does_not_exist_ends_it(start) -> None:
    code, log = start(settings="GENESIS_DEVICE=cuda:99\n").end()
    assert code == 78
    assert "GENESIS_DEVICE=auto" in log
    assert "Traceback" not in log


def test_the_loop_survives_errors_of_its_database(start, until, notices) -> None:
    """It continues, but the watchdog is not fed."""
    daemon = start(NOTIFY_SOCKET=notices.getsockname().decode().replace("\0", "@"))
    until(lambda: daemon.lines("listener_started"))
    until(lambda: daemon.get("/readyz") == "serving")
    assert notices.recv(100) == b"READY=1"
    assert notices.recv(100) == b"WATCHDOG=1"
    with closing(sqlite3.connect(daemon.folder / ".genesis" / "genesis.db")) as database:
        database.execute("ALTER TABLE runs RENAME TO hidden")
        assert "no such table" in daemon.wait_for("store_failed")["error"]
        until(lambda: "no such table" in daemon.get("/readyz"))
        until(lambda: "genesis_store_up 0.0" in daemon.get("/metrics"))
        notices.setblocking(False)
        with suppress(BlockingIOError):  # sent while the database worked
            while notices.recv(100):
                pass
        for _ in range(2):
            tick = daemon.last_tick()
            until(lambda tick=tick: daemon.last_tick() != tick)
        with pytest.raises(BlockingIOError):
            notices.recv(100)
        notices.settimeout(300)
        database.execute("ALTER TABLE hidden RENAME TO runs")
    assert notices.recv(100) == b"WATCHDOG=1"
    until(lambda: daemon.get("/readyz") == "serving")
    until(lambda: "genesis_store_up 1.0" in daemon.get("/metrics"))
    assert len(daemon.lines("store_failed")) == 1, "not once for every round"


def test_a_corrupt_database_is_named_and_left_alone(start, tmp_path: Path) -> None:
    home = tmp_path / "daemon0" / ".genesis"
    home.mkdir(parents=True)
    (home / "genesis.db").write_text("not a database, and long enough to be read as one" * 50)
    code, log = start().end()
    assert code == 65
    assert "genesis.db" in log
    assert "move it away" in log
    assert "Traceback" not in log


def test_no_new_database_is_created_if_one_is_missing(start, tmp_path: Path) -> None:
    """Otherwise the rollbacks that operators have ordered would be forgotten."""
    home = tmp_path / "daemon0" / ".genesis"
    run = home / "runs" / "20261121T112607-4bb90ed8"
    run.mkdir(parents=True)
    code, log = start().end()
    assert code == 65
    assert f"database {home}/genesis.db is gone, but {run} belongs to a run" in log
    assert "move it back" in log
    assert "Traceback" not in log
    assert not (home / "genesis.db").exists()


def test_a_locked_database_delays_neither_rollback_nor_exit(start, install_plugin, until) -> None:
    install_plugin("a")
    daemon = start(settings="GENESIS_AGENTS__A__SCHEDULE=every 1s\n")
    until(lambda: daemon.lines("listener_started"))
    until(lambda: daemon.get("/readyz") == "serving")
    with closing(sqlite3.connect(daemon.folder / ".genesis" / "genesis.db")) as database:
        database.isolation_level = None
        database.execute("BEGIN IMMEDIATE")
        daemon.wait_for("store_failed")
        until(lambda: "database is locked" in daemon.get("/readyz"))
        assert daemon.get("/healthz").startswith("the loop ticked")
        (daemon.folder / ".env").write_text("ENABLE_FP16_TRAINING=false\n")
        daemon.wait_for("settings_reloaded")
        daemon.process.send_signal(signal.SIGINT)
        code, log = daemon.end()
    assert code == 0
    assert "Traceback" not in log
    assert len(daemon.lines("store_failed")) <= 2, "once in the loop, once in the drain"


@pytest.mark.parametrize("lost", ["removed", "replaced", "home"])
def test_a_daemon_whose_lock_keeps_nobody_out_stops(start, until, lost: str) -> None:
    daemon = start()
    home = daemon.folder / ".genesis"
    until(
        lambda: (status := find_daemon(home)) and not status.trouble
    )  # its status file is written
    if lost == "home":
        home.rename(daemon.folder / "gone")
    else:
        (home / "daemon.lock").unlink()
    if lost == "replaced":
        (home / "daemon.lock").touch()
        (home / "daemon.json").write_text("another's")
    code, log = daemon.end()
    assert code == 65
    assert "daemon.lock was removed or replaced" in log
    assert "Traceback" not in log
    if lost == "replaced":
        assert (home / "daemon.json").read_text() == "another's"


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_database_that_was_moved_or_replaced_is_reported(start, until, how: str) -> None:
    """Otherwise an operator's rollback would go unnoticed to another file."""
    daemon = start()
    daemon.wait_for("daemon_ready")
    until(lambda: daemon.get("/readyz") == "serving")
    home, away = daemon.folder / ".genesis", daemon.folder / "away"
    away.mkdir()
    files = sorted(home.glob("genesis.db*"))
    for file in files:
        file.rename(away / file.name)
    if how == "replaced":
        Store.open(Settings(home=home)).close()
    error = daemon.wait_for("store_failed")["error"]
    assert f"{home}/genesis.db was moved, removed or replaced" in error
    assert "move it back, or restart" in error
    until(lambda: "move it back, or restart" in daemon.get("/readyz"))
    until(lambda: "genesis_store_up 0.0" in daemon.get("/metrics"))
    until(lambda: "move it back" in find_daemon(home).trouble)
    for file in home.glob("genesis.db*"):
        file.unlink()
    for file in files:
        (away / file.name).rename(file)
    until(lambda: daemon.get("/readyz") == "serving")
    until(lambda: find_daemon(home).trouble == "")
    daemon.process.terminate()
    assert daemon.end()[0] == 0
    assert find_daemon(home) is None


def test_a_rollback_survives_the_loss_of_the_settings_file(start, install_plugin) -> None:
    """The daemon and a run in the foreground refuse to start until a person has decided."""
    install_plugin("any")
    daemon = start(settings="ENABLE_FP16_TRAINING=false\n", GENESIS_METRICS_PORT="0")
    daemon.wait_for("daemon_ready")
    home = daemon.folder / ".genesis"
    found = {path: path.stat().st_mode & 0o777 for path in (home, *home.iterdir())}
    assert found.pop(home) == 0o700
    assert set(found.values()) == {0o600}, found
    daemon.process.terminate()
    assert daemon.end()[0] == 0

    file = daemon.folder / ".env"
    file.write_text("")
    for command in (["serve"], ["run", "any"]):
        environ = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "PYTHONPATH")}
        with ForkedPopen(
            [PROGRAM, *command], cwd=daemon.folder, env=environ, stderr=subprocess.PIPE, text=True
        ) as refused:
            errors = refused.communicate(timeout=300)[1]
        assert refused.returncode == os.EX_CONFIG
        assert f"ENABLE_FP16_TRAINING: was false in {file}" in errors

    again = start(daemon.folder, settings="ENABLE_FP16_TRAINING=true\n")
    assert again.wait_for("rollback_ended")["now"] == {str(file): "true"}
    again.wait_for("daemon_ready")


def test_commands_see_which_settings_the_daemon_follows(start, until) -> None:
    daemon = start(settings="GENESIS_PRECISION=bf16\n", ENABLE_FP16_TRAINING="false")
    home, file = daemon.folder / ".genesis", daemon.folder / ".env"
    until(lambda: find_daemon(home) and find_daemon(home).trouble == "")
    status = find_daemon(home)
    assert (status.pid, status.env_file, status.refused) == (daemon.process.pid, str(file), "")
    assert status.hot["enable_fp16_training"] is False
    assert status.sources["ENABLE_FP16_TRAINING"] == "environment"
    assert status.settings_in_force(Settings(slots=7)).precision == "bf16"
    assert status.settings_in_force(Settings(slots=7)).slots == 7

    file.write_text("\nGENESIS_PRECISION=auto\nGENESIS_AGENTS__A__PRECISION=fp32\n")
    until(lambda: find_daemon(home).hot["precision"] == "auto")
    status = find_daemon(home)
    assert status.sources["GENESIS_PRECISION"] == f"{file} line 2"
    assert status.hot["agents"]["a"]["precision"] == "fp32"

    file.write_text("GENESIS_DATABASE_URL=u:sekret@h/d\nGENESIS_SEED 'sekret\n")
    until(lambda: "GENESIS_SEED" in find_daemon(home).refused)
    assert "GENESIS_DATABASE_URL" in find_daemon(home).refused
    assert "sekret" not in (home / "daemon.json").read_text()

    file.unlink()
    until(lambda: "missing or empty" in find_daemon(home).refused)
    assert find_daemon(home).hot == status.hot
    assert find_daemon(home).sources == status.sources
    daemon.process.kill()
    daemon.end()
    assert find_daemon(home) is None, "even though the file is still there"


def test_a_database_locked_at_the_start_is_waited_for(
    start, install_plugin, until, tmp_path: Path
) -> None:
    install_plugin("a")
    home = tmp_path / "daemon0" / ".genesis"
    Store.open(Settings(home=home)).close()
    with closing(sqlite3.connect(home / "genesis.db")) as database:
        database.isolation_level = None
        database.execute("BEGIN IMMEDIATE")
        daemon = start(settings="GENESIS_AGENTS__A__SCHEDULE=every 1h\n")
        assert "locked" in daemon.wait_for("store_failed")["error"]
        daemon.wait_for("daemon_ready")
        assert not daemon.lines("agent_scheduled")
        database.execute("ROLLBACK")
    assert daemon.wait_for("agent_scheduled")["agent"] == "a"
    until(lambda: daemon.get("/readyz") == "serving")


def test_old_weights_go_at_the_start_and_when_a_run_has_ended(start, until, tmp_path: Path) -> None:
    """Of an agent that is not installed, whose runs end by being cancelled."""
    home = tmp_path / "daemon0" / ".genesis"
    with closing(Store.open(Settings(home=home))) as store:

        def end_run() -> Path:
            run = store.enqueue("gone", first_seed=0)
            weights = home / "runs" / run.id / "checkpoints" / "step-0000000001.pt"
            weights.parent.mkdir(parents=True)
            weights.touch()
            store.request_cancel(run.id, actor="me", reason="a test")
            return weights

        first = end_run()
        daemon = start(settings="GENESIS_KEEP_RUNS=1\n")
        until(lambda: not store.unfinished())
        second = end_run()
        assert daemon.wait_for("weights_removed")["run_id"] == first.parents[1].name
        daemon.process.terminate()
        assert daemon.end()[0] == 0
        assert [first.exists(), second.exists()] == [False, True]

        run = store.enqueue("gone", first_seed=0)
        third = home / "runs" / run.id / "best-epoch.pt"
        third.parent.mkdir()
        third.touch()
        store.move(run.id, RunState.CANCELLED)  # while no daemon runs
        daemon = start(daemon.folder, "GENESIS_KEEP_RUNS=1\n")
        assert daemon.wait_for("weights_removed")["run_id"] == second.parents[1].name
        assert [second.exists(), third.exists()] == [False, True]


def test_a_decision_of_the_guard_during_the_drain_is_recorded(home_settings: Settings) -> None:
    """A worker's last events are read in the drain, after the last round."""
    with closing(Store.open(home_settings)) as store:
        run = store.enqueue("a", first_seed=0)
        attempt = store.begin_attempt(run.id, "i")
        assert attempt is not None
        folder = attempt_folder(home_settings.home, attempt)
        folder.mkdir(parents=True)
        with EventWriter(folder / "events.ndjson") as emit:
            emit(STORM)
        with closing(RunLogger(Console(stderr=True))) as run_logger:
            watch = PluginWatch(home_settings)
            daemon = service.Daemon(home_settings, store, watch, Metrics(), run_logger)
            daemon.start()
            with Signals() as signals:
                daemon.loop.drain(signals)
        [decision] = store.guard.history("a")
        assert (decision.state, decision.run_id) == ("tripped", run.id)
