"""Each check, on a real home, a real port and real plugins."""

import grp
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from genesis_fp16.daemon.checks import (
    CheckResult,
    check_access,
    check_api,
    check_daemon_settings,
    check_database,
    check_device,
    check_home,
    check_lock,
    check_plugins,
    check_port,
    check_predictor,
    check_settings,
    check_telemetry,
    run_checks,
)
from genesis_fp16.daemon.http import start_http
from genesis_fp16.metrics import Metrics
from genesis_fp16.plugins.probe import Plugin
from genesis_fp16.settings import AgentSettings, Settings, load_settings
from genesis_fp16.store import DaemonLock, Store

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("forked")]

RunChecks = Callable[..., dict[str, list[CheckResult]]]


@pytest.fixture
def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def look(tmp_path: Path, free_port: int) -> RunChecks:
    """RunChecks with settings from a file; findings by check."""

    def look(
        environ: dict[str, str] | None = None, **changes: object
    ) -> dict[str, list[CheckResult]]:
        values = {
            "GENESIS_HOME": tmp_path / "home",
            "GENESIS_METRICS_PORT": free_port,
            "GENESIS_DEVICE": "cpu",
            "GENESIS_AGENTS__SE_DARWIN__ENABLED": "false",
            **changes,
        }
        path = tmp_path / ".env"
        path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
        results: dict[str, list[CheckResult]] = {}
        for finding in run_checks(lambda: load_settings(path, environ or {})):
            results.setdefault(finding.check, []).append(finding)
        return results

    return look


def verdicts(results: dict[str, list[CheckResult]], check: str) -> list[str]:
    return [finding.verdict for finding in results[check]]


def test_wrong_settings_are_named_without_secrets(look: RunChecks) -> None:
    results = look(
        GENESIS_DATABASE_URL="postgresql:/u:sekret@h/d",
        GENESIS_AGENTS__A__SETING__API_TOKEN="sekret",
        GENESIS_SEED="'sekret",
    )
    assert verdicts(results, "settings") == ["fail"] * 3
    assert "sekret" not in str(results)


def test_healthy_machine(look: RunChecks, install_plugin: Callable[..., None]) -> None:
    install_plugin("fine")
    results = look()
    everything = [finding for of_check in results.values() for finding in of_check]
    assert [finding for finding in everything if finding.verdict != "ok"] == []
    assert set(results) == {
        *("versions", "library", "settings", "home", "access", "disk", "database", "lock"),
        *("metrics port", "control api", "predictor", "telemetry", "executor", "device", "plugin"),
        *("command", "files"),
    }
    assert "resolves to FP32" in results["device"][0].found


def test_wrong_settings_end_the_checks(look: RunChecks) -> None:
    results = look(GENESIS_SLOTS="many", GENESIS_SEED="x")
    assert verdicts(results, "settings") == ["fail", "fail"]
    assert "GENESIS_SLOTS=many" in results["settings"][0].found
    assert "home" not in results


def test_a_hot_setting_in_the_environment_gets_a_warning(look: RunChecks) -> None:
    results = look({"FP16_LOSS_SCALE": "8", "GENESIS_PRECISION": "bf16"}, FP16_LOSS_SCALE="4")
    warned = {f.found.split()[0]: f for f in results["settings"] if f.verdict == "warn"}
    assert set(warned) == {"FP16_LOSS_SCALE", "GENESIS_PRECISION"}
    assert "outranks" in warned["FP16_LOSS_SCALE"].found
    assert "changed live" in warned["GENESIS_PRECISION"].found


def test_a_removed_setting_gets_a_warning_with_its_release(look: RunChecks) -> None:
    results = look(GENESIS_FLEET="auto")
    [valid, removed] = results["settings"]
    assert (valid.verdict, removed.verdict) == ("ok", "warn")
    assert "GENESIS_FLEET" in removed.found
    assert "0.2.0" in removed.found
    assert "GENESIS_SLOTS" in removed.remedy


def test_an_unknown_name_gets_a_warning_with_its_nearest_setting(look: RunChecks) -> None:
    results = look(GENESIS_SLOT="2", GENESIS_ENV="production")
    [valid, unknown] = results["settings"]
    assert (valid.verdict, unknown.verdict) == ("ok", "warn")
    assert "GENESIS_SLOT " in unknown.found
    assert unknown.remedy == "did you mean GENESIS_SLOTS?"


def test_home_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert check_home(Settings(home=tmp_path / "file" / "home")).verdict == "fail"


def test_a_foreign_folder_gets_no_command_that_closes_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "doc.txt").touch()
    home.chmod(0o755)
    settings = Settings(home=home, env_file=tmp_path / ".env")
    result = check_home(settings)
    assert (result.verdict, "doc.txt" in result.found) == ("fail", True)
    assert result.remedy.startswith("set GENESIS_HOME to")
    assert "chmod" not in str(list(check_access(settings)))


def test_what_other_users_may_read_or_change_gets_a_command(tmp_path: Path) -> None:
    home, database, file = tmp_path / "home", tmp_path / "shared.db", tmp_path / ".env"
    home.mkdir(mode=0o700)
    (home / "runs").mkdir()
    database.touch()
    secret = "GENESIS_AGENTS__A__SETTINGS__API_KEY=sekret\n"
    file.write_text(f"GENESIS_HOME={home}\nGENESIS_DATABASE_URL=sqlite:///{database}\n{secret}")
    for path, mode in ((home, 0o755), (home / "runs", 0o755), (database, 0o644), (file, 0o646)):
        path.chmod(mode)
    settings = load_settings(file, {})
    assert {(result.verdict, result.remedy) for result in check_access(settings)} == {
        ("warn", f"chmod -R go-rwx {home}"),
        ("warn", f"chmod o-rwx {home / 'runs'}"),
        ("warn", f"chmod o-rwx {file}"),
        ("warn", f"chmod o-w {file}"),
        ("warn", f"chmod o-rw {database}"),
    }
    for result in check_access(settings):
        subprocess.run(result.remedy.split(), check=True)
    assert [result.verdict for result in check_access(settings)] == ["ok"]
    file.chmod(0o644)
    file.write_text(file.read_text().replace(secret, ""))
    assert [result.verdict for result in check_access(load_settings(file, {}))] == ["ok"]
    tmp_path.chmod(0o777)
    assert [result.remedy for result in check_access(settings)] == [
        f"chmod o-rwx {file}",
        f"chmod o-w {tmp_path}",
    ]


def test_database_states(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    assert "will be created" in check_database(settings).found
    with closing(Store.open(settings)):
        pass
    assert "at revision" in check_database(settings).found
    with closing(Store.open(settings)) as store:
        store.enqueue("a", first_seed=0)
    with closing(sqlite3.connect(tmp_path / "genesis.db", isolation_level=None)) as connection:
        connection.execute("UPDATE runs SET steps = 'abc'")
        finding = check_database(settings)
        assert finding.verdict == "warn"
        assert finding.found.endswith(": 1 of runs")
        connection.execute("UPDATE alembic_version SET version_num = '0001'")
        assert check_database(settings).verdict == "warn"
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        assert check_database(settings).verdict == "fail", "the daemon does not start"
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "genesis.db").write_text("no database, and long enough to be read as one" * 99)
    finding = check_database(settings)
    assert finding.verdict == "fail"
    assert "restore" in finding.remedy
    (tmp_path / "genesis.db").unlink()
    (tmp_path / "runs" / "20261121T112607-4bb90ed8").mkdir(parents=True)
    finding = check_database(settings)
    assert finding.verdict == "fail"
    assert "genesis.db is gone" in finding.found
    assert "move it back" in finding.remedy


def test_a_port_used_by_another_program_fails(tmp_path: Path, free_port: int) -> None:
    settings = Settings(home=tmp_path, metrics_port=free_port)
    assert check_port(settings).verdict == "ok"
    with socket.create_server(("127.0.0.1", free_port)):
        assert check_port(settings).verdict == "fail"
    server = start_http(settings, Metrics(), lambda: (True, ""))
    try:
        assert check_port(settings).verdict == "fail"  # a daemon of another home
        assert check_lock(settings).found == "no daemon serves"
        with DaemonLock(settings):
            assert "our daemon" in check_port(settings).found
            assert f"(pid {os.getpid()} on" in check_lock(settings).found
    finally:
        server.stop()


def test_a_daemon_in_trouble_is_shown_with_the_remedy(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with DaemonLock(settings) as lock:
        assert check_lock(settings).found.endswith("which is starting")
        lock.write_status(settings)
        assert check_lock(settings).verdict == "ok"
        lock.write_status(settings, trouble="the store fails: it was moved; move it back")
        finding = check_lock(settings)
    assert finding.verdict == "fail"
    assert finding.found.endswith("it was moved")
    assert finding.remedy == "move it back"


def test_a_daemon_with_other_settings_gets_a_warning(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(f"GENESIS_HOME={tmp_path}\nENABLE_FP16_TRAINING=true\n")
    of_its_own = {"ENABLE_FP16_TRAINING": "false"}
    its, here = load_settings(file, of_its_own), load_settings(file, {})
    assert list(check_daemon_settings(here)) == []
    with DaemonLock(its) as lock:
        assert [result.verdict for result in check_daemon_settings(its)] == ["warn"]
        [environment] = check_daemon_settings(here)
        lock.write_status(here.model_copy(update={"precision": "bf16"}))
        [difference] = check_daemon_settings(here)
        lock.write_status(here)
        assert list(check_daemon_settings(here)) == []
        lock.write_status(here, refused="1 setting is wrong:\n  X=1")
        [refused] = check_daemon_settings(here)
    assert "ENABLE_FP16_TRAINING is set in the daemon's environment" in environment.found
    assert difference.found.startswith("GENESIS_PRECISION")
    assert difference.found.endswith("bf16 -> fp16")
    assert str(file) in difference.remedy
    assert refused.found.endswith(": 1 setting is wrong: X=1")
    assert str(file) in refused.found


def test_a_named_settings_file_that_does_not_exist_fails(tmp_path: Path) -> None:
    environ = {"GENESIS_ENV_FILE": str(tmp_path / "no.env")}
    finding = run_checks(lambda: load_settings(environ=environ))[-1]
    assert (finding.check, finding.verdict) == ("settings", "fail")
    assert "no.env (environment)" in finding.found
    assert next(iter(check_settings(Settings()))).verdict == "ok"


def test_missing_device_fails() -> None:
    finding = check_device(Settings(device="cuda:99"))
    assert finding.verdict == "fail"
    assert "cuda:99" in finding.found


def test_plugins() -> None:
    settings = Settings(agents={"broke": AgentSettings(precision="fp32")})
    broken = Plugin(
        name="broken", entry_point="m:A", distribution="d", version="1", reason="no luck"
    )
    results = {finding.found: finding for finding in check_plugins(settings, [broken])}
    assert results["broken is quarantined: no luck"].verdict == "warn"
    assert results["no agent is ready"].verdict == "fail"
    unknown = results["settings of BROKE, an agent that is not installed"]
    assert (unknown.verdict, unknown.remedy) == ("warn", "did you mean BROKEN?")


def test_canaries_that_are_not_agents() -> None:
    plugins = [
        Plugin(name="good", distribution="d", version="1", entry_point="m:A", state="ready"),
        Plugin(name="off", distribution="d", version="1", entry_point="m:A", state="disabled"),
    ]

    def look(names: str) -> list[tuple[str, str, str]]:
        results = check_plugins(Settings(canary_agents=names), plugins)
        return [(f.verdict, f.found[-40:], f.remedy) for f in results if f.check == "canary"]

    assert look("") == look("good") == []
    [(verdict, shown, remedy)] = look("good, goood")
    assert (verdict, remedy) == ("warn", "did you mean good?")
    [(verdict, shown, remedy)] = look("off")
    assert (verdict, remedy.split()[-1]) == ("fail", "good")
    assert shown.endswith("stays in FP32")


@pytest.mark.parametrize(
    ("changes", "verdict", "shown"),
    [
        ({}, "ok", "Unix socket"),
        ({"api_socket": False}, "ok", "off"),
        ({"api_port": 80}, "fail", "127.0.0.1:80 without"),
        ({"api_port": 80, "api_token": "x" * 16}, "ok", "127.0.0.1:80, 1 token"),
        ({"api_port": 80, "api_token": "x" * 16, "api_host": "::"}, "warn", "without encryption"),
        ({"api_port": 80, "api_token_file": Path("gone")}, "fail", "gone cannot be read"),
        ({"api_port": 80, "api_token_file": Path("open")}, "warn", "other users"),
    ],
)
def test_the_control_api(folder: Path, changes: dict, verdict: str, shown: str) -> None:
    (folder / "open").write_text("ann " + "y" * 16)
    (folder / "open").chmod(0o644)
    result = check_api(Settings(**changes))
    assert result.verdict == verdict
    assert shown in result.found
    assert bool(result.remedy) == (verdict != "ok")


def test_the_exporter_of_telemetry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_telemetry(Settings(home=tmp_path)).found == "off"
    wanted = Settings(home=tmp_path, otel=True)
    assert check_telemetry(wanted).verdict == "ok"
    monkeypatch.setattr(sys, "path", [])  # in an environment without it
    missing = check_telemetry(wanted)
    assert (missing.verdict, "genesis-fp16[otel]" in missing.remedy) == ("warn", True)


@pytest.mark.parametrize(
    ("changes", "mode", "verdict", "shown"),
    [
        ({"predictor": False}, 0o700, "ok", "off"),
        ({}, 0o700, "ok", "on its Unix socket"),
        ({"predict_port": 9, "api_token": "x" * 16}, 0o700, "ok", "127.0.0.1:9"),
        ({"predict_port": 9}, 0o700, "fail", "127.0.0.1:9"),
        ({"predict_group": "no-such-group"}, 0o700, "fail", "does not exist"),
        ({"predict_group": "own"}, 0o700, "warn", "may not enter"),
        ({"predict_group": "own"}, 0o710, "ok", "on its Unix socket"),
    ],
)
def test_the_predictor(tmp_path: Path, changes: dict, mode: int, verdict: str, shown: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(mode)
    if changes.get("predict_group") == "own":
        changes = {"predict_group": grp.getgrgid(home.stat().st_gid).gr_name}
    result = check_predictor(Settings(home=home, **changes))
    assert result.verdict == verdict
    assert shown in result.found
    assert bool(result.remedy) == (verdict != "ok")
