"""The service in a real systemd: installed, started, reloaded, killed, hung, stopped, upgraded.

Minutes, and root: not part of the suite. `make boot-test` runs it.
"""

from pathlib import Path

import pytest

pytestmark = [pytest.mark.boot, pytest.mark.timeout(900)]

TRAINING = {
    "GENESIS_WORKER_THREADS": 1,
    "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
    "GENESIS_AGENTS__QUICK__SCHEDULE": "'every 1s'",
    "GENESIS_AGENTS__QUICK__SETTINGS__EPOCHS": 1_000_000,
    "GENESIS_AGENTS__QUICK__SETTINGS__BATCHES_PER_EPOCH": 500,
    "GENESIS_CHECKPOINT_INTERVAL_SECONDS": 3600,  # so that a checkpoint was made by a stop
}


def _checkpointed(machine) -> int:
    """Step of the newest checkpoint."""
    return machine.events("checkpoint_saved")[-1]["step"]


def _trains(machine, attempts: int) -> None:
    """The run's attempt number *attempts* has made steps."""
    machine.wait_for(lambda: len(machine.events("started")) == attempts)
    steps = len(machine.events("step_stats"))
    machine.wait_for(lambda: len(machine.events("step_stats")) > steps + 3)


def test_installed_it_runs_se_darwin_in_its_sandbox(machine) -> None:
    machine.run("cd genesis-fp16 && make install")
    assert machine.run("stat -c '%U %a' /var/lib/genesis-fp16") == "genesis-fp16 700"
    machine.configure(GENESIS_BUDGET_SECONDS=5)
    machine.run("systemctl enable --now genesis-fp16.service")
    assert machine.show("ActiveState") == "active"
    machine.wait_for(lambda: machine.json("runs")[0]["state"] == "succeeded", 240)
    machine.run("systemctl stop genesis-fp16.service")
    assert machine.show("Result") == "success"


def test_a_plugin_is_added_and_trains(machine) -> None:
    plugins = machine.folder / "etc/genesis-fp16/plugins.txt"
    plugins.write_text(plugins.read_text() + "/srv/quick-agent\n")
    for path in machine.home.glob("runs/*/attempts/*/events.ndjson"):
        path.unlink()
    machine.configure(**TRAINING)
    machine.run("cd genesis-fp16 && make install")
    machine.run("systemctl start genesis-fp16.service")
    _trains(machine, 1)


def test_a_reload_reads_the_settings(machine) -> None:
    machine.configure(ENABLE_FP16_TRAINING="false", **TRAINING)
    machine.wait_for(lambda: '{"ENABLE_FP16_TRAINING": "true -> false"}' in machine.log)
    before = machine.log.count("settings_reloaded")
    machine.run("systemctl reload genesis-fp16.service")
    machine.wait_for(lambda: machine.log.count("settings_reloaded") == before + 1)
    assert machine.show("ActiveState") == "active"
    assert machine.show("NRestarts") == "0"


def test_a_killed_daemon_comes_back_and_its_worker_had_time_to_checkpoint(machine) -> None:
    machine.run(f"kill -9 {machine.show('MainPID')}")
    _trains(machine, 2)
    assert machine.show("NRestarts") == "1"
    assert machine.events("resumed")[-1]["step"] == _checkpointed(machine) > 0


def test_a_hung_daemon_is_ended_by_the_watchdog_and_comes_back(machine) -> None:
    folder = machine.folder / "etc/systemd/system/genesis-fp16.service.d"
    folder.mkdir(exist_ok=True)
    (folder / "test.conf").write_text("[Service]\nWatchdogSec=4\n")
    machine.run("systemctl daemon-reload; systemctl restart genesis-fp16.service")
    _trains(machine, 3)
    machine.run(f"kill -STOP {machine.show('MainPID')}")
    _trains(machine, 4)
    assert "Watchdog timeout" in machine.log
    assert machine.events("resumed")[-1]["step"] == _checkpointed(machine)


def test_a_stop_checkpoints_and_a_start_resumes_there(machine) -> None:
    before = _checkpointed(machine)
    machine.run("systemctl stop genesis-fp16.service")
    assert machine.show("Result") == "success"
    assert _checkpointed(machine) > before
    machine.run("systemctl start genesis-fp16.service")
    _trains(machine, 5)
    assert machine.events("resumed")[-1]["step"] == _checkpointed(machine)


def test_an_upgrade_in_place_goes_on_with_the_run(machine) -> None:
    old = machine.run("readlink /opt/genesis-fp16/current")
    source = machine.folder / "srv/genesis-fp16/genesis_fp16/__init__.py"
    source.write_text(source.read_text().replace('__version__ = "', '__version__ = "77.'))
    machine.run("cd genesis-fp16 && make install")
    _trains(machine, 6)
    assert machine.events("resumed")[-1]["step"] == _checkpointed(machine)
    assert "77." in machine.run("genesis-fp16 --version")
    assert Path(machine.folder, old[1:]).exists(), "the way back"


def test_an_upgrade_that_does_not_start_is_taken_back(machine) -> None:
    serving = machine.run("readlink /opt/genesis-fp16/current")
    source = machine.folder / "srv/genesis-fp16/genesis_fp16/service.py"
    whole = source.read_text()
    source.write_text(f"{whole}\nraise SystemExit('a daemon that cannot serve')\n")
    machine.run("cd genesis-fp16 && ! make install")
    source.write_text(whole)
    assert machine.run("readlink /opt/genesis-fp16/current") == serving
    assert len(machine.run("ls /opt/genesis-fp16/releases").splitlines()) == 1 + 1
    _trains(machine, 7)


def test_an_upgrade_that_does_not_suit_the_settings_changes_nothing(machine) -> None:
    serving, pid = machine.run("readlink /opt/genesis-fp16/current"), machine.show("MainPID")
    machine.configure(GENESIS_SLOTS="many", **TRAINING)
    machine.run("cd genesis-fp16 && ! make install")
    assert machine.run("readlink /opt/genesis-fp16/current") == serving
    assert machine.show("MainPID") == pid
    machine.run("systemctl stop genesis-fp16.service")
    machine.run("systemctl start genesis-fp16.service", check=False)
    machine.wait_for(lambda: machine.show("ActiveState") == "failed")
    assert machine.show("ExecMainStatus") == "78"
    assert machine.show("NRestarts") == "0", "wrong settings do not mend themselves"


def test_uninstalled_it_leaves_settings_and_data(machine) -> None:
    machine.run("cd genesis-fp16 && make uninstall")
    assert machine.run("systemctl list-unit-files 'genesis*' --no-legend", check=False) == ""
    assert (machine.home / "genesis.db").exists()
    machine.run("cd genesis-fp16 && make uninstall PURGE=1")
    assert not machine.home.exists()
