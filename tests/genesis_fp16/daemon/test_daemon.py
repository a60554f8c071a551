"""The daemon as a process: what it logs, refuses and survives."""

import os
import signal
import socket
import subprocess
from contextlib import closing, suppress
from pathlib import Path

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
from tests.genesis_fp16.daemon.daemon_process import PROGRAM
from tests.preloaded import ForkedPopen

pytestmark = pytest.mark.process

STORM = StepStats(step=100, applied=40, overflow=60, fp16=100, loss_scale=4.0, precision="fp16")
NEXT_TO_NOTHING = 100 << 20  # bytes of memory


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
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
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
        assert "agent a is not installed" in store.run(run.id).error
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


def test_a_home_and_settings_of_release_0_1_are_taken_over(
    start, install_plugin, tmp_path: Path
) -> None:
    """That release could train several runs in one worker, and kept what it had measured."""
    install_plugin("any")
    folder = tmp_path / "release_0_1"
    measured = folder / ".genesis" / "agents" / "any" / "last-training.json"
    measured.parent.mkdir(parents=True)
    measured.write_text('{"shape": "1f", "collect_seconds": 0.1, "train_seconds": 2.0}')
    settings = "GENESIS_FLEET=auto\nGENESIS_MAX_ATTEMPTS=1\n"
    daemon = start(folder, f"{settings}GENESIS_AGENTS__ANY__SCHEDULE=every 1s\n")
    daemon.wait_for("run_ended")
    [warning] = daemon.lines("settings_removed")
    assert warning["level"] == "warning"
    [ignored] = warning["ignored"]
    assert "GENESIS_FLEET (.env line 3)" in ignored
    assert "release 0.2.0" in ignored
    daemon.process.terminate()
    assert daemon.end()[0] == 0


def test_names_of_genesis_pass_and_an_unknown_name_is_warned_of(start, until) -> None:
    daemon = start(settings="GENESIS_ENV=production\nGENESIS_SLOT=2\n")
    daemon.wait_for("listener_started")
    [warning] = daemon.lines("settings_unknown")
    assert [line.partition(" ")[0] for line in warning["ignored"]] == ["GENESIS_SLOT"]
    until(lambda: "genesis_unknown_settings 1.0" in daemon.get("/metrics"))
    daemon.process.terminate()
    assert daemon.end()[0] == 0


def modes_of(folder: Path) -> dict[str, str]:
    paths = (folder, *folder.rglob("*"))
    return {str(path.relative_to(folder)): f"{path.stat().st_mode & 0o777:o}" for path in paths}


def test_a_foreign_folder_as_home_is_refused_and_stays_as_it_is(start, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "sub").mkdir(parents=True)
    (foreign / "doc.txt").touch()
    for path, mode in ((foreign, 0o755), (foreign / "sub", 0o755), (foreign / "doc.txt", 0o644)):
        path.chmod(mode)
    before = modes_of(foreign)
    code, log = start(GENESIS_HOME=str(foreign)).end()
    assert code == 78
    assert f"GENESIS_HOME {foreign} is not a home of genesis-fp16: it contains doc.txt" in log
    assert "Traceback" not in log
    assert modes_of(foreign) == before


@pytest.mark.parametrize("usable", [True, False])
def test_a_home_is_closed_to_others_by_a_start_that_succeeds(
    start, tmp_path: Path, usable: bool
) -> None:
    home = tmp_path / "daemon0" / ".genesis"
    (home / "agents.d").mkdir(parents=True)
    if not usable:
        (home / "genesis.db").mkdir()
        (home / "genesis.db").chmod(0o755)
    home.chmod(0o755)
    (home / "agents.d").chmod(0o755)
    daemon = start()
    if usable:
        daemon.wait_for("daemon_ready")
        assert len(daemon.lines("made_private")) == 2
        assert all(mode in ("700", "600") for mode in modes_of(home).values()), modes_of(home)
        return
    code, log = daemon.end()
    assert code == 65
    assert "made_private" not in log
    assert {modes_of(home)[name] for name in (".", "agents.d", "genesis.db")} == {"755"}


def test_a_device_that_does_not_exist_ends_it(start) -> None:
    code, log = start(settings="GENESIS_DEVICE=cuda:99\n").end()
    assert code == 78
    assert "GENESIS_DEVICE=auto" in log
    assert "Traceback" not in log


def test_a_rollback_survives_the_loss_of_the_settings_file(start, install_plugin) -> None:
    """The daemon and a run in the foreground refuse to start until a person has decided."""
    install_plugin("any")
    daemon = start(settings="ENABLE_FP16_TRAINING=false\n", GENESIS_METRICS_PORT="0")
    daemon.wait_for("daemon_ready")
    home = daemon.folder / ".genesis"
    modes = {path: path.stat().st_mode & 0o777 for path in (home, *home.iterdir())}
    assert modes.pop(home) == 0o700
    assert set(modes.values()) == {0o600}, modes
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
