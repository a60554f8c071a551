"""The status that a daemon publishes for commands."""

import os
from contextlib import suppress
from pathlib import Path

import pytest

from genesis_fp16.settings import load_settings
from genesis_fp16.store import DaemonLock
from genesis_fp16.store.daemon_status import STATUS_FILE, DaemonStatus, find_daemon, read_status


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    path = tmp_path / ".env"
    path.write_text(
        f"GENESIS_HOME={tmp_path / 'home'}\nENABLE_FP16_TRAINING=false\nGENESIS_SLOTS=2\n"
        "GENESIS_AGENTS__A__PRECISION=fp32\nGENESIS_AGENTS__A__SETTINGS__API_KEY=hunter2\n"
    )
    return path


def test_only_a_home_that_is_locked_has_a_daemon(env_file: Path) -> None:
    settings = load_settings(env_file, {})
    assert find_daemon(settings.home) is None
    assert not settings.home.exists()
    with DaemonLock(settings):
        (settings.home / STATUS_FILE).unlink()
        assert find_daemon(settings.home) == DaemonStatus()
    assert find_daemon(settings.home) is None


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
def test_a_status_that_the_disk_refuses_is_unknown_for_that_reason(
    env_file: Path, small_disk
) -> None:
    settings = load_settings(env_file, {})
    fill = settings.home / "fill"
    with small_disk(settings.home), DaemonLock(settings) as lock:
        with suppress(OSError), fill.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        lock.write_status(settings)
        daemon = find_daemon(settings.home)
        assert daemon is not None
        assert str(daemon) == "status unknown: the disk is full"
        assert "GENESIS_HOME is full" in daemon.trouble
        fill.unlink()
        lock.write_status(settings)
        daemon = find_daemon(settings.home)
        assert daemon is not None
        assert (daemon.pid, daemon.trouble) == (os.getpid(), "")


def test_hot_settings_and_their_sources_are_published(env_file: Path) -> None:
    settings = load_settings(env_file, {})
    status = DaemonStatus(pid=1).with_settings(settings, trouble="", refused="\x1b[2Jwrong")
    written = status.model_dump_json()
    assert "hunter2" not in written
    assert "\x1b" not in status.refused
    read = DaemonStatus.model_validate_json(written)
    assert read == status
    assert read.sources == {"ENABLE_FP16_TRAINING": f"{env_file} line 2"}
    local = load_settings(env_file, {"GENESIS_SLOTS": "7", "GENESIS_PRECISION": "bf16"})
    in_force = read.settings_in_force(local)
    assert in_force is not None
    assert (in_force.slots, in_force.precision) == (7, "fp16")
    assert not in_force.enable_fp16_training
    assert in_force.for_agent("a").precision == "fp32"
    assert in_force.differences(local) == {"GENESIS_PRECISION": "fp16 -> bf16"}


@pytest.mark.parametrize("hot", [{}, {"precision": "fp8"}, {"of_another_release": 1}])
def test_settings_that_cannot_be_read_are_unknown(env_file: Path, hot: dict) -> None:
    assert DaemonStatus(hot=hot).settings_in_force(load_settings(env_file, {})) is None


@pytest.mark.parametrize("content", ["", "{", '{"pid": "x"}'])
def test_a_status_that_cannot_be_read_is_empty(tmp_path: Path, content: str) -> None:
    (tmp_path / STATUS_FILE).write_text(content)
    assert read_status(tmp_path) == DaemonStatus()
