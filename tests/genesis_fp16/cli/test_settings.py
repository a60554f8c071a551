"""Commands in an emergency: wrong settings, and a daemon with other settings or a lost store."""

import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.settings import Settings, SettingsError, load_settings
from genesis_fp16.store import DaemonLock, Store, StoreError
from tests.genesis_fp16.new_store import new_store

SET = ("precision", "set", "fp32", "--reason", "hurry")
READING = (("precision", "show"), ("precision", "explain", "a"), ("runs",))
LATIN_1 = "# für\n".encode("latin-1")


@pytest.fixture(autouse=True)
def folder(folder: Path, install_plugin) -> Path:
    """A working folder with an agent installed."""
    install_plugin("a")
    return folder


@pytest.fixture
def home(folder: Path) -> Path:
    """A home with a database, which the settings file names."""
    (folder / ".env").write_text(f"GENESIS_HOME={folder / 'home'}\n")
    new_store(load_settings()).close()
    return folder / "home"


@pytest.fixture
def daemon(home: Path) -> Iterator[DaemonLock]:
    """What commands see of a daemon that serves this home and is well."""
    settings = load_settings()
    with DaemonLock(settings) as lock:
        lock.write_status(settings)
        yield lock


def ask(*arguments: str) -> Result:
    result = CliRunner().invoke(app, arguments)
    if not isinstance(result.exception, GenesisError):
        assert result.exception is None or isinstance(result.exception, SystemExit)
    return result


def refused(kind: type[GenesisError], *arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, kind), result.output
    assert result.stdout == ""
    return str(result.exception)


def reasons(home: Path) -> list[str]:
    with closing(Store.open(Settings(home=home))) as store:
        return [override.reason for override in store.overrides.in_force()]


@pytest.mark.process
@pytest.mark.parametrize("wrong", [b"ENABLE_FP16_TRAINING=flase\n", LATIN_1, b"\xff\xfe\0\x1b[2J"])
def test_a_wrong_file_does_not_stop_a_command(home: Path, folder: Path, wrong: bytes) -> None:
    with (folder / ".env").open("ab") as file:
        file.write(wrong)
    for arguments in (SET, *READING, ("precision", "clear", "--json")):
        result = ask(*arguments)
        assert result.exit_code == 0, result.output
        [line] = result.stderr.splitlines()
        assert line.startswith("warning: ")
        assert ".env" in line
        assert f"daemon serves {home}" in line
        assert "\x1b" not in line
        if arguments == SET:
            assert reasons(home) == ["hurry"]
            assert f"no daemon serves {home} now" in result.stdout
    assert "ENABLE_FP16_TRAINING is unknown" in ask("precision").stdout
    assert reasons(home) == []


def test_the_warning_names_what_the_daemon_keeps(daemon: DaemonLock, folder: Path) -> None:
    with (folder / ".env").open("a") as file:
        file.write("ENABLE_FP16_TRAINING=flase\nGENESIS_SLOTS=many\n")
    result = ask(*SET)
    assert result.stdout.startswith("fp32 for all agents; a running daemon ")
    assert "ENABLE_FP16_TRAINING=flase (.env line 2)" in result.stderr
    assert "; and 1 more; the daemon (pid " in result.stderr
    assert "keeps ENABLE_FP16_TRAINING=true, GENESIS_PRECISION=fp16" in result.stderr
    assert "ENABLE_FP16_TRAINING allows half precision (default)" in ask("precision").stdout


@pytest.mark.parametrize(
    "wrong",
    [
        b"GENESIS_DATABASE_URL=oracle://x\n",
        b"GENESIS_HOME /elsewhere\n",
        "GENESIS_HOME=/größe\n".encode("latin-1"),
    ],
)
def test_the_location_of_the_store_must_be_valid(home: Path, folder: Path, wrong: bytes) -> None:
    with (folder / ".env").open("ab") as file:
        file.write(b"GENESIS_SLOTS=many\n" + wrong)
    for arguments in (SET, *READING):
        message = refused(SettingsError, *arguments)
        assert message.startswith("1 setting is wrong:")
        assert "GENESIS_SLOTS" not in message
    assert reasons(home) == []


def test_wrong_settings_create_no_database(folder: Path) -> None:
    """The wrong line may be the one that says where it is."""
    (folder / ".env").write_text("GENESIS_SLOTS=many\n")
    assert "GENESIS_SLOTS=many" in refused(SettingsError, *SET)
    assert not (folder / ".genesis").exists()


@pytest.mark.parametrize("wrong", [False, True])
def test_commands_refuse_a_database_that_a_daemon_would_not_look_into(
    daemon: DaemonLock, home: Path, wrong: bool
) -> None:
    for file in home.glob("genesis.db*"):
        file.rename(home.with_name(file.name))
    if wrong:
        with home.with_name(".env").open("a") as settings_file:
            settings_file.write("GENESIS_SLOTS=many\n")
    for arguments in (SET, *READING, ("precision", "clear")):
        message = refused(StoreError, *arguments)
        assert f"{home}/genesis.db is gone, though a daemon (pid {os.getpid()}" in message
        assert "move it back" in message
    assert StoreError.exit_code == 65
    assert not (home / "genesis.db").exists()
    daemon.release()
    assert ask(*SET).exit_code == (1 if wrong else 0)


def test_a_daemon_that_may_miss_the_change_is_warned_of(daemon: DaemonLock, folder: Path) -> None:
    daemon.write_status(load_settings(), trouble="the store fails: it was replaced; move it back")
    result = ask(*SET)
    assert result.exit_code == 0
    assert "replaced; move it back" in result.stderr
    assert f"set ENABLE_FP16_TRAINING=false in {folder / '.env'}" in result.stderr


def test_the_settings_shown_are_those_the_daemon_follows(daemon: DaemonLock, folder: Path) -> None:
    with (folder / ".env").open("a") as file:
        file.write("ENABLE_FP16_TRAINING=true\nGENESIS_AGENTS__A__PRECISION=bf16\n")
    its = load_settings(environ={"ENABLE_FP16_TRAINING": "false", "GENESIS_PRECISION": "bf16"})
    daemon.write_status(its)
    result = ask("precision")
    lines = result.stdout.splitlines()
    assert lines[0].startswith(f"the daemon (pid {os.getpid()} on ")
    assert lines[0].endswith(f" {folder / '.env'}")
    assert lines[1] == "ENABLE_FP16_TRAINING demands FP32 for all (environment)"
    assert lines[2].startswith("GENESIS_PRECISION is bf16")
    assert "ENABLE_FP16_TRAINING: false -> true" in lines[3]
    assert "GENESIS_PRECISION: bf16 -> fp16" in lines[4]
    assert lines[5:] == ["setting of a: bf16"]
    assert result.stderr == ""
    answer = json.loads(ask("precision", "--json").stdout)
    assert answer["flag"] == {"value": False, "source": "environment"}
    assert answer["daemon"]["pid"] == os.getpid()
    assert "FP32 stays" in ask("precision", "set", "bf16", "--reason", "x").stderr
    assert ask(*SET).stderr == "", "the daemon sees the override"
    daemon.write_status(load_settings(), trouble="starting")
    assert ask("precision", "set", "bf16", "--reason", "x").stderr == "", (
        "a starting daemon sees it"
    )


def test_a_missing_file_changes_nothing_that_is_shown(
    daemon: DaemonLock, folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / ".env").write_text("ENABLE_FP16_TRAINING=false\nGENESIS_GUARD_ENABLED=false\n")
    daemon.write_status(load_settings())
    (folder / ".env").unlink()
    monkeypatch.setenv("GENESIS_HOME", str(home))
    shown = ask("precision").stdout
    assert "ENABLE_FP16_TRAINING demands FP32 for all (.env line 1)" in shown
    assert "GENESIS_GUARD_ENABLED: false -> true" in shown
    daemon.release()
    assert "ENABLE_FP16_TRAINING allows half precision (default)" in ask("precision").stdout


@pytest.mark.parametrize("content", ["", "{}", '{"pid": "x"}', '{"hot": {"precision": "fp8"}}'])
def test_a_daemon_with_an_unreadable_status_is_shown_as_serving(
    daemon: DaemonLock, home: Path, folder: Path, content: str
) -> None:
    (home / "daemon.json").write_text(content)
    with (folder / ".env").open("a") as file:
        file.write("ENABLE_FP16_TRAINING=true\n")
    result = ask("precision").stdout
    assert result.startswith("the daemon (")
    assert "its settings are not known" in result
    assert "ENABLE_FP16_TRAINING allows half precision (.env line 2)" in result
    assert "a running daemon " in ask(*SET).stdout
    with (folder / ".env").open("a") as file:
        file.write("GENESIS_SLOTS=many\n")
    warned = ask(*SET).stderr
    assert f"a daemon serves {home} (" in warned


def test_a_start_needs_no_file(folder: Path) -> None:
    assert not (folder / ".env").exists()
    assert load_settings().enable_fp16_training


def test_a_missing_file_that_the_environment_names_is_never_taken_for_defaults(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GENESIS_ENV_FILE", str(folder / "typo.env"))
    commands = ["serve", "run a", "config show", "agents", "precision", "runs", "preflight a"]
    for arguments in map(str.split, commands):
        message = refused(SettingsError, *arguments)
        assert f"GENESIS_ENV_FILE={folder}/typo.env (environment)" in message
        assert "comment" in message
    assert not (folder / ".genesis").exists()
    with closing(Store.open(Settings(home=folder / ".genesis"))):
        pass
    for command in ("precision", "runs"):
        assert "typo.env (environment)" in ask(command).stderr
