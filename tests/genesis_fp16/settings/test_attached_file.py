"""The flag in the settings file of an attached Genesis: false in either file wins."""

from pathlib import Path

import pytest

from genesis_fp16.settings import Settings, SettingsError, load_settings
from genesis_fp16.settings.reload import POLL_SECONDS, Reload, SettingsReloader

FLAG = "ENABLE_FP16_TRAINING"


@pytest.fixture
def genesis(tmp_path: Path) -> Path:
    path = tmp_path / "genesis" / ".env"
    path.parent.mkdir()
    return path


@pytest.fixture
def ours(tmp_path: Path, genesis: Path) -> Path:
    path = tmp_path / "ours.env"
    path.write_text(f"GENESIS_ATTACHED_ENV_FILE={genesis}\n")
    return path


def loaded(ours: Path, flag: str = "") -> Settings:
    if flag:
        ours.write_text(ours.read_text() + f"{FLAG}={flag}\n")
    return load_settings(ours, {})


@pytest.mark.parametrize(
    ("theirs", "own", "allowed"),
    [
        ("true", "true", True),
        ("true", "", True),
        ("false", "true", False),
        ("false", "", False),
        ("true", "false", False),
        ("maybe", "true", False),
    ],
)
def test_false_in_either_file_wins(
    genesis: Path, ours: Path, theirs: str, own: str, allowed: bool
) -> None:
    genesis.write_text(f"GENESIS_ENV=production\n{FLAG}={theirs}\n")
    settings = loaded(ours, own)
    assert settings.enable_fp16_training is allowed
    if not allowed and own != "false":
        assert settings.source_of("enable_fp16_training") == f"{genesis} line 2"


def test_nothing_else_of_their_file_counts(genesis: Path, ours: Path) -> None:
    genesis.write_text("GENESIS_SLOTS=many\nGENESIS_SLOT=1\nno assignment 'here\n")
    settings = loaded(ours)
    assert (settings.slots, settings.enable_fp16_training) == (1, True)
    assert settings.unknown == {}


@pytest.mark.parametrize(
    ("line", "allowed"),
    [
        ("ENABLE_FP16_TRAINNING=false", False),
        ("ENABLE_FP_16_TRAINING=off", False),
        ("ENABLE_FP16=nope", False),
        ("DISABLE_FP16_TRAINING=true", False),
        ("DISABLE_FP16_TRAINING=false", True),
        ("ENABLE_FP16_TRAINNING=true", True),
        ("FP16_LOSS_SCALE=1.0", True),
    ],
)
def test_a_misspelt_flag_of_theirs_is_warned_of_and_rolls_back(
    genesis: Path, ours: Path, line: str, allowed: bool
) -> None:
    genesis.write_text(f"GENESIS_ENV=production\n{FLAG}=true\n{line}\n")
    settings = loaded(ours, "true")
    assert settings.enable_fp16_training is allowed
    name = line.partition("=")[0]
    if name == "FP16_LOSS_SCALE":
        assert settings.unknown == {}
        return
    assert f"{genesis} line 3" in settings.unknown[name]
    assert f"did you mean {FLAG}?" in settings.unknown[name]
    assert ("FP32" in settings.unknown[name]) is not allowed


def test_a_missing_file_demands_nothing(ours: Path) -> None:
    assert loaded(ours).enable_fp16_training


def test_a_file_that_cannot_be_read_is_wrong(genesis: Path, ours: Path) -> None:
    genesis.mkdir()
    with pytest.raises(SettingsError, match=r"GENESIS_ATTACHED_ENV_FILE=.*would not be seen"):
        loaded(ours)


def test_a_running_daemon_follows_their_file(genesis: Path, ours: Path) -> None:
    genesis.write_text(f"{FLAG}=true\n")
    now, reloader = 100.0, SettingsReloader(loaded(ours), {})

    def polled() -> Reload | None:
        nonlocal now
        reload = None
        for _ in range(3):
            now += POLL_SECONDS
            reload = reload or reloader.poll(now)
        return reload

    assert polled() is None
    genesis.write_text(f"{FLAG}=false\n")
    outcome = polled()
    assert outcome is not None
    assert outcome.changed == {FLAG: "true -> false"}
    genesis.write_text(f"{FLAG}=true\n")
    outcome = polled()
    assert outcome is not None
    assert outcome.changed == {FLAG: "false -> true"}
