"""The flag for programs that train by the library: read as the daemon reads it."""

from pathlib import Path

import pytest

from genesis_fp16.settings import SettingsError, library_precision, load_settings
from genesis_fp16.settings.rollback_memory import RollbackMemory


@pytest.fixture
def env_file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


@pytest.mark.parametrize(
    ("file", "environment", "effective", "reason"),
    [
        ("", {}, "fp16", "default"),
        ("ENABLE_FP16_TRAINING=true", {}, "fp16", "default"),
        ("ENABLE_FP16_TRAINING=false", {}, "fp32", "flag"),
        ("ENABLE_FP16_TRAINING=false", {"ENABLE_FP16_TRAINING": "true"}, "fp32", "flag"),
        ("ENABLE_FP16_TRAINING=true", {"ENABLE_FP16_TRAINING": "0"}, "fp32", "flag"),
        ("GENESIS_PRECISION=bf16", {}, "bf16", "default"),
        ("GENESIS_PRECISION=bf16", {"GENESIS_PRECISION": "auto"}, "auto", "default"),
        ("GENESIS_SLOTS=many", {}, "fp16", "default"),
    ],
)
def test_file_and_environment_decide_as_in_the_daemon(
    env_file: Path, file: str, environment: dict[str, str], effective: str, reason: str
) -> None:
    env_file.write_text(f"{file}\n")
    precision = library_precision(env_file, environment)
    assert (precision.effective, precision.reason) == (effective, reason)
    assert precision.requested == ("fp16" if effective == "fp32" else effective)


@pytest.mark.parametrize(
    ("file", "named"),
    [
        ("ENABLE_FP16_TRAINING=perhaps", "ENABLE_FP16_TRAINING=perhaps"),
        ("ENABLE_FP16_TRANING=false", "mean ENABLE_FP16_TRAINING"),
        ("GENESIS_PRECISION=fp8", "GENESIS_PRECISION=fp8"),
    ],
)
def test_what_cannot_be_read_is_refused(env_file: Path, file: str, named: str) -> None:
    env_file.write_text(f"{file}\n")
    with pytest.raises(SettingsError, match=named):
        library_precision(env_file, {})


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        library_precision(environ={"GENESIS_ENV_FILE": str(tmp_path / "gone.env")})


@pytest.mark.parametrize("kind", [Path, str])
def test_a_file_given_by_name_must_exist(tmp_path: Path, kind: type) -> None:
    with pytest.raises(SettingsError, match=r"gone.env: .*not exist"):
        library_precision(kind(tmp_path / "gone.env"), {})


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, env_file: Path) -> None:
    env_file.write_text("ENABLE_FP16_TRAINING=false\n", encoding="utf-16")  # as PowerShell does
    for unreadable in (env_file, tmp_path):
        with pytest.raises(SettingsError, match=f"{unreadable} cannot be read"):
            library_precision(unreadable, {})


def test_the_working_folder_and_the_environment_are_read_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GENESIS_ENV_FILE", raising=False)
    monkeypatch.delenv("ENABLE_FP16_TRAINING", raising=False)
    assert library_precision().reason == "default"
    Path(".env").write_text("ENABLE_FP16_TRAINING=false\n")
    assert library_precision().reason == "flag"


def test_settings_that_have_lost_a_rollback_are_refused(env_file: Path, tmp_path: Path) -> None:
    home = {"GENESIS_HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    env_file.write_text("ENABLE_FP16_TRAINING=false\n")
    settings = load_settings(env_file, home)
    RollbackMemory(settings).keep(settings, [])  # as a daemon that serves does
    env_file.write_text("")
    with pytest.raises(SettingsError, match="ENABLE_FP16_TRAINING"):
        library_precision(env_file, home)
