"""A demand for FP32 ends only when a person writes another value."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from genesis_fp16.domain.precision import Override
from genesis_fp16.settings import Settings, SettingsError, load_settings
from genesis_fp16.settings.reload import CONFIRM_SECONDS, POLL_SECONDS, SettingsReloader
from genesis_fp16.settings.rollback_memory import MEMORY_FILE, RollbackMemory, read_rollbacks

FALSE, TRUE = "ENABLE_FP16_TRAINING=false\n", "ENABLE_FP16_TRAINING=true\n"
OVERRIDE = Override(
    agent=None, precision="fp32", reason="odd loss", actor="ann", created_at=5.0, expires_at=9e9
)


class Host:
    """A settings file and an environment, and daemons that start and stop with them."""

    def __init__(self, folder: Path) -> None:
        self.home, self.file = folder / "home", folder / ".env"
        self.home.mkdir()
        self.environ = {"GENESIS_HOME": str(self.home)}

    def read(self) -> Settings:
        return load_settings(self.file, self.environ)

    def serve(self, text: str | None = None) -> Settings:
        """Start a daemon, with *text* in the file, and stop it."""
        if text is not None:
            self.file.write_text(text)
        settings = self.read()
        RollbackMemory(settings, lambda: 1e9).keep(settings, [])
        return settings

    def refusal(self, **environ: str) -> str:
        with pytest.raises(SettingsError) as refused:
            load_settings(self.file, self.environ | environ)
        return str(refused.value)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def empty(host: Host) -> None:
    host.file.write_text("")


def delete(host: Host) -> None:
    host.file.unlink()


def shrink(host: Host) -> None:
    host.file.write_text("GENESIS_SLOTS=2\n")


def truncate(host: Host) -> None:
    host.file.write_text("GENESIS_SLOTS=2\nENABLE_FP16_TR")


def comment_out(host: Host) -> None:
    host.file.write_text("#ENABLE_FP16_TRAINING=false\n")


def other_working_folder(host: Host) -> None:
    host.file = host.home / ".env"


def other_file_without_it(host: Host) -> None:
    host.file = host.home / "copy.env"
    host.file.write_text("GENESIS_SLOTS=3\n")


def file_of_another_that_says_true(host: Host) -> None:
    host.file = host.home / "copy.env"
    host.file.write_text(TRUE)


def config_map_mounted_without_its_key(host: Host) -> None:
    host.file.unlink()
    data = host.file.with_name("..data")
    data.mkdir()
    (data / ".env").write_text("")
    host.file.symlink_to("..data/.env")


LOSSES = [
    empty,
    delete,
    shrink,
    truncate,
    comment_out,
    other_working_folder,
    other_file_without_it,
    file_of_another_that_says_true,
    config_map_mounted_without_its_key,
]


@pytest.mark.parametrize("lose", LOSSES)
def test_a_file_that_no_longer_says_false_is_refused(
    host: Host, lose: Callable[[Host], None]
) -> None:
    file = host.file
    host.serve("GENESIS_SLOTS=2\n" + FALSE)
    lose(host)
    refusal = host.refusal()
    assert f"ENABLE_FP16_TRAINING: was false in {file} since 2001-09-09 01:46Z" in refusal
    assert str(host.home / MEMORY_FILE) in refusal
    # Either word of a person is accepted, and a true ends the rollback for good.
    file.unlink(missing_ok=True)
    host.file.unlink(missing_ok=True)
    assert not host.serve(FALSE).enable_fp16_training
    assert host.serve(TRUE).enable_fp16_training
    assert not (host.home / MEMORY_FILE).exists()
    assert host.serve("").enable_fp16_training


def test_a_file_that_moved_with_its_rollback_is_followed(host: Host) -> None:
    host.serve(FALSE)
    host.file = host.file.rename(host.home / "moved.env")
    assert not host.serve().enable_fp16_training
    host.file.write_text("")
    assert f"was false in {host.file}" in host.refusal()


@pytest.mark.parametrize("in_file", ["", TRUE])
def test_a_variable_that_vanishes_from_the_environment_is_missed(host: Host, in_file: str) -> None:
    """A true that stood in the file all along is not a new decision."""
    host.environ["ENABLE_FP16_TRAINING"] = "no"
    assert not host.serve(in_file).enable_fp16_training
    del host.environ["ENABLE_FP16_TRAINING"]
    assert "in the environment since" in host.refusal()
    host.environ["ENABLE_FP16_TRAINING"] = "true"
    assert host.serve().enable_fp16_training
    del host.environ["ENABLE_FP16_TRAINING"]
    assert host.serve().enable_fp16_training


def test_a_true_written_later_into_the_file_ends_what_the_environment_said(host: Host) -> None:
    host.environ["ENABLE_FP16_TRAINING"] = "false"
    host.serve("")
    del host.environ["ENABLE_FP16_TRAINING"]
    assert host.serve(TRUE).enable_fp16_training


@pytest.mark.parametrize(
    ("variable", "fp32"), [("PRECISION", "fp32"), ("ROLE_PRECISION", "fp32_baseline")]
)
def test_the_precision_of_an_agent_is_remembered(host: Host, variable: str, fp32: str) -> None:
    name = f"GENESIS_AGENTS__A__{variable}"
    host.serve(f"{name}={fp32}\n")
    host.file.write_text("")
    assert f"{name}: was {fp32}" in host.refusal()
    host.serve(f"{name}=\n")
    host.serve("")


def test_a_home_that_the_lost_file_named_is_remembered_beside_it(
    host: Host, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    host.environ.clear()
    host.serve(f"GENESIS_HOME={host.home}\n{FALSE}")
    copy = host.file.with_name(f".env.{MEMORY_FILE}")
    assert copy.exists()
    host.file.write_text("")
    assert str(copy) in host.refusal()
    host.serve(f"GENESIS_HOME={host.home}\n{TRUE}")
    assert not copy.exists()
    host.serve("")


def test_a_running_daemon_does_not_take_a_missing_line_for_a_true(host: Host) -> None:
    settings = host.serve(f"GENESIS_HOME={host.home}\n{FALSE}")
    reloader, now = SettingsReloader(settings, {}), 100.0
    for text, flag in (("GENESIS_SLOTS=2\n", False), (TRUE, True)):
        host.file.write_text(text)
        now += POLL_SECONDS
        assert reloader.poll(now) is None
        outcome = reloader.poll(now + CONFIRM_SECONDS)
        assert outcome is not None
        assert outcome.settings.enable_fp16_training is flag
        assert ("was false" in str(outcome.error)) is not flag
        now += POLL_SECONDS


NO_TIME = b'{"settings": {"ENABLE_FP16_TRAINING": {"since": %s, "texts": {}}}}'


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"\xff", b"[]", b"{}", b'{"settings": {"X": 1}}'),
        *(NO_TIME % since for since in (b"1e300", b"NaN", b"-1e30")),
    ],
)
def test_a_damaged_memory_demands_an_explicit_flag(host: Host, content: bytes) -> None:
    host.serve(FALSE)
    path = host.home / MEMORY_FILE
    path.write_bytes(content)
    empty(host)
    assert f"{path} cannot be read (damaged)" in host.refusal()
    host.serve(TRUE)
    host.serve("")


def test_who_may_not_read_the_memory_must_state_the_flag(host: Host) -> None:
    path = host.home / MEMORY_FILE
    path.mkdir()  # unreadable for root, too
    host.file.write_text("")
    assert f"{path} cannot be read (is not a regular" in host.refusal()
    host.file.write_text(FALSE)
    assert not host.read().enable_fp16_training


def test_only_some_settings(host: Host) -> None:
    """What reads the flag alone keeps the rule; what reads the location alone does not need it."""
    host.serve(FALSE)
    host.file.write_text("")
    with pytest.raises(SettingsError, match="was false"):
        load_settings(host.file, host.environ, only=("ENABLE_FP16_TRAINING",))
    settings = load_settings(host.file, host.environ, only=("GENESIS_HOME",))
    assert settings.home == host.home


def test_overrides_are_remembered(host: Host) -> None:
    settings = host.read()
    half = replace(OVERRIDE, precision="bf16")
    RollbackMemory(settings).keep(settings, [half, OVERRIDE])
    assert RollbackMemory(settings).remembered.overrides == (OVERRIDE,)
    RollbackMemory(settings).keep(settings, [])
    assert not (host.home / MEMORY_FILE).exists()


def test_what_cannot_be_written_is_logged_once_and_tried_again(host: Host) -> None:
    host.file.write_text(FALSE)
    settings = host.read()
    memory = RollbackMemory(settings)
    host.home.rename(host.home.with_name("away"))
    with capture_logs() as lines:
        memory.keep(settings, [])
        memory.keep(settings, [])
    assert [line["event"] for line in lines] == ["rollbacks_not_remembered"]
    host.home.mkdir()
    memory.keep(settings, [])
    assert read_rollbacks(host.home / MEMORY_FILE).settings.keys() == {"ENABLE_FP16_TRAINING"}


def test_the_end_of_a_rollback_is_logged(host: Host) -> None:
    host.serve(FALSE)
    with capture_logs() as lines:
        host.serve(TRUE)
    assert [(line["event"], line["now"]) for line in lines] == [
        ("rollback_ended", {str(host.file): "true"})
    ]


FLAGS = st.sampled_from(["", TRUE, FALSE])


@given(st.lists(st.tuples(FLAGS, st.sampled_from([None, "true", "false"])), max_size=6))
def test_no_order_of_edits_and_restarts_loses_a_rollback(
    tmp_path_factory: pytest.TempPathFactory, starts: list[tuple[str, str | None]]
) -> None:
    """After a false, a start is in FP32 or refused until a place says true that did not then."""
    host = Host(tmp_path_factory.mktemp("host"))
    then: Mapping[str, str | None] | None = None
    for text, variable in starts:
        host.file.write_text(text)
        host.environ.pop("ENABLE_FP16_TRAINING", None)
        if variable is not None:
            host.environ["ENABLE_FP16_TRAINING"] = variable
        said = {"file": text and text.strip().partition("=")[2], "environment": variable}
        wants_fp32 = "false" in said.values()
        said_anew = then is not None and any(
            said[place] == "true" and then[place] != "true" for place in said
        )
        if wants_fp32 or then is None or said_anew:
            assert host.serve().enable_fp16_training is not wants_fp32
            then = said if wants_fp32 else None
        else:
            host.refusal()


def test_the_memory_is_plain_json(host: Host) -> None:
    host.serve(FALSE)
    assert json.loads((host.home / MEMORY_FILE).read_text()) == {
        "settings": {
            "ENABLE_FP16_TRAINING": {"since": 1e9, "texts": {str(host.file): "false"}},
        },
        "overrides": [],
    }
