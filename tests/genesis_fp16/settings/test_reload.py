"""What a running daemon applies from a changed file, and what it does not."""

import os
from contextlib import suppress
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from genesis_fp16.settings import load_settings
from genesis_fp16.settings.env_file import MAX_BYTES
from genesis_fp16.settings.reload import CONFIRM_SECONDS, POLL_SECONDS, Reload, SettingsReloader


class Running:
    """A daemon's view of its file, with a clock that the test sets."""

    def __init__(self, path: Path, environ: dict[str, str]) -> None:
        self.path, self.now = path, 100.0
        self.reloader = SettingsReloader(load_settings(path, environ), environ)
        assert self.poll() is None, "nothing has changed yet"

    def poll(self) -> Reload | None:
        """Poll until a change that rests would have been seen."""
        reload = None
        for _ in range(3):
            self.now += POLL_SECONDS
            reload = reload or self.reloader.poll(self.now)
        return reload

    def write(self, text: str) -> Reload | None:
        self.path.write_text(text)
        return self.poll()


def logged(outcome: Reload) -> list[str]:
    """Events that *outcome* logs."""
    with capture_logs() as entries:
        outcome.log_outcome()
    return [entry["event"] for entry in entries]


@pytest.fixture
def running(tmp_path: Path) -> Running:
    path = tmp_path / ".env"
    path.write_text("GENESIS_SLOTS=2\n")
    return Running(path, {})


def test_all_settings_of_an_agent_that_is_not_in_use_take_effect(running: Running) -> None:
    running.reloader.in_use = lambda key: key == "used"
    outcome = running.write(
        "GENESIS_SLOTS=2\nGENESIS_AGENTS__LATER__SETTINGS__TOKEN=abc\n"
        "GENESIS_AGENTS__LATER__PARALLEL=fsdp2\nGENESIS_AGENTS__USED__PARALLEL=fsdp2\n"
        "GENESIS_AGENTS__USED__SCHEDULE=every 7m\nGENESIS_AGENTS__USED__OVERLAP=queue\n"
    )
    assert outcome is not None
    assert outcome.settings.for_agent("later").settings == {"token": "abc"}
    assert outcome.settings.for_agent("later").parallel == "fsdp2"
    used = outcome.settings.for_agent("used")
    assert (used.parallel, used.schedule, used.overlap) == ("ddp", "every 7m", "queue")
    assert outcome.cold == ("GENESIS_AGENTS__USED__PARALLEL",)
    assert "abc" not in str(outcome.changed)
    outcome = running.write("GENESIS_SLOTS=2\n")
    assert outcome is not None
    assert outcome.settings.for_agent("later").settings == {}


def test_hot_settings_change(running: Running) -> None:
    outcome = running.write(
        "GENESIS_SLOTS=2\nENABLE_FP16_TRAINING=false\nFP16_LOSS_SCALE=8\nGENESIS_PRECISION=bf16\n"
        "GENESIS_AGENTS__SE_DARWIN__PRECISION=fp32\n"
    )
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training
    assert outcome.changed == {"ENABLE_FP16_TRAINING": "true -> false"}
    outcome = running.poll()
    assert outcome is not None
    assert outcome.settings.for_agent("se-darwin").precision == "fp32"
    assert outcome.changed == {
        "FP16_LOSS_SCALE": "(empty) -> 8.0",
        "GENESIS_PRECISION": "fp16 -> bf16",
        "GENESIS_AGENTS__SE_DARWIN__PRECISION": "(empty) -> fp32",
    }
    assert outcome.cold == ()
    assert running.poll() is None


def test_guard_and_canary_change(running: Running) -> None:
    outcome = running.write("GENESIS_SLOTS=2\nGENESIS_GUARD_ENABLED=no\nGENESIS_CANARY_SHARE=0.1\n")
    assert outcome is not None
    assert not outcome.settings.guard_enabled
    assert outcome.settings.canary_share == 0.1
    assert outcome.cold == ()


def test_cold_settings_wait_for_a_restart(running: Running) -> None:
    outcome = running.write("GENESIS_SLOTS=3\nGENESIS_AGENTS__A__ENABLED=false\n")
    assert outcome is not None
    assert outcome.settings.slots == 2
    assert outcome.settings.for_agent("a").enabled is None
    assert outcome.changed == {}
    assert outcome.cold == ("GENESIS_SLOTS", "GENESIS_AGENTS__A__ENABLED")
    assert logged(outcome) == ["settings_reloaded", "settings_deferred"]


def test_a_wrong_file_changes_nothing(running: Running) -> None:
    outcome = running.write("GENESIS_PRECISION=bf16\nFP16_LOSS_SCALE=lots\n")
    assert outcome is not None
    assert "FP16_LOSS_SCALE=lots" in str(outcome.error)
    assert outcome.settings.precision == "fp16"
    assert logged(outcome) == ["settings_refused"]
    assert running.poll() is None, "reported once"
    outcome = running.write("GENESIS_PRECISION=bf16\n")
    assert outcome is not None
    assert outcome.settings.precision == "bf16"


def test_a_wrong_setting_does_not_delay_a_demand_for_fp32(running: Running) -> None:
    wrong = "GENESIS_AGENTS__A__SCHEDULE=often\nGENESIS_PRECISION=bf16\n"
    outcome = running.write(f"ENABLE_FP16_TRAINING=false\n{wrong}")
    assert outcome is not None
    assert (outcome.error, logged(outcome)) == (None, ["settings_reloaded"])
    assert outcome.changed == {"ENABLE_FP16_TRAINING": "true -> false"}
    assert outcome.settings.source_of("enable_fp16_training").endswith(".env line 1")
    outcome = running.poll()
    assert outcome is not None
    assert "GENESIS_AGENTS__A__SCHEDULE=often" in str(outcome.error)
    assert not outcome.settings.enable_fp16_training
    assert outcome.settings.precision == "fp16"
    assert running.poll() is None, "reported once"
    outcome = running.write(f"ENABLE_FP16_TRAINING=true\n{wrong}")
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training, "half precision needs a file that is right"
    outcome = running.write("ENABLE_FP16_TRAINING=true\n")
    assert outcome is not None
    assert outcome.settings.enable_fp16_training


@pytest.mark.parametrize(
    "line",
    [
        b"# caf\xe9",  # Latin-1
        b"GENESIS_HOME=~nobody-of-that-name/home",
        b"GENESIS_SLOTS=many",
        b"ENABLE_FP16_TRANING=true",
        b"ENABLE_FP16_TRAINING='true",
    ],
)
def test_no_other_line_hides_a_demand_for_fp32(running: Running, line: bytes) -> None:
    running.path.write_bytes(line + b"\nENABLE_FP16_TRAINING=false\n")
    outcome = running.poll()
    assert outcome is not None
    assert outcome.changed == {"ENABLE_FP16_TRAINING": "true -> false"}
    outcome = running.poll()
    assert outcome is not None
    assert outcome.error is not None, "the line is reported"
    assert not outcome.settings.enable_fp16_training


def test_the_flag_takes_effect_before_what_is_changed_with_it(running: Running) -> None:
    running.path.write_text("ENABLE_FP16_TRAINING=false\nGENESIS_PRECISION=bf16\n")
    first = running.reloader.reload()
    assert first.changed == {"ENABLE_FP16_TRAINING": "true -> false"}
    rest = running.reloader.poll(running.now)
    assert rest is not None
    assert rest.changed == {"GENESIS_PRECISION": "fp16 -> bf16"}


def test_a_refusal_is_logged_without_secrets(running: Running) -> None:
    outcome = running.write(
        "GENESIS_DATABASE_URL=u:sekret@h/d\nGENESIS_DATABASE_URL 'sekret\n"
        'GENESIS_AGENTS__A__SETTINGS={"api_key":"sekret"\n'
    )
    assert outcome is not None
    with capture_logs() as entries:
        outcome.log_outcome()
    assert "GENESIS_DATABASE_URL" in entries[0]["error"]
    assert "sekret" not in str(entries)


@pytest.mark.parametrize("lost", ["deleted", "emptied", "dangling", "with its folder"])
def test_a_file_that_is_lost_does_not_undo_the_rollback(running: Running, lost: str) -> None:
    running.write("ENABLE_FP16_TRAINING=false\n")
    path = running.path
    if lost == "emptied":
        path.write_text("")
    else:
        path.unlink()
    if lost == "dangling":
        path.symlink_to("nowhere")
    if lost == "with its folder":
        path.parent.rename(path.parent.with_name("elsewhere"))
    outcome = running.poll()
    assert outcome is not None
    assert "missing or empty" in str(outcome.error)
    assert not outcome.settings.enable_fp16_training
    if lost == "with its folder":
        path.parent.mkdir()
    path.unlink(missing_ok=True)
    outcome = running.write("# all defaults\n")
    assert outcome is not None
    assert outcome.settings.enable_fp16_training


def test_a_file_may_appear_but_not_disappear_again(tmp_path: Path) -> None:
    running = Running(tmp_path / ".env", {})
    outcome = running.write("ENABLE_FP16_TRAINING=false\n")
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training
    running.path.unlink()
    outcome = running.poll()
    assert outcome is not None
    assert "missing or empty" in str(outcome.error)
    assert not outcome.settings.enable_fp16_training


def test_it_polls_every_half_second_and_confirms_a_change_sooner(running: Running) -> None:
    running.path.write_text("GENESIS_PRECISION=bf16\n")
    begun = running.now
    seen = [
        running.reloader.poll(begun + later)
        for later in (
            0.5 * POLL_SECONDS,  # too early
            POLL_SECONDS,  # something new
            POLL_SECONDS + 0.5 * CONFIRM_SECONDS,  # too early
            POLL_SECONDS + CONFIRM_SECONDS,  # it rests
        )
    ]
    assert [outcome is not None for outcome in seen] == [False, False, False, True]


def test_a_demand_for_fp32_needs_no_second_look_and_ends_with_its_file(running: Running) -> None:
    before = running.path.read_text()
    running.path.write_text(before + "ENABLE_FP16_TRAINING=false\n")
    outcome = running.reloader.poll(running.now + POLL_SECONDS)
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training
    running.path.write_text(before)  # as it was when it was read last
    outcome = running.poll()
    assert outcome is not None
    assert outcome.settings.enable_fp16_training


def test_the_file_may_be_named_from_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = Running(Path(".env"), {}).write("ENABLE_FP16_TRAINING=false\n")
    assert outcome is not None
    assert (len(outcome.changed), outcome.cold) == (1, ())


def test_a_half_written_file_switches_nothing(running: Running) -> None:
    running.write("ENABLE_FP16_TRAINING=false\n")
    running.path.write_text("")  # an editor truncates
    running.now += POLL_SECONDS
    assert running.reloader.poll(running.now) is None
    running.path.write_text("ENABLE_FP16_TRAINING=false\n# written\n")  # and goes on
    running.now += CONFIRM_SECONDS
    assert running.reloader.poll(running.now) is None
    outcome = running.poll()
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training


def test_a_change_between_loading_and_the_first_poll_is_seen(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    settings = load_settings(path, {})
    path.write_text("ENABLE_FP16_TRAINING=false\n")
    reloader = SettingsReloader(settings, {})
    outcomes = [reloader.poll(now) for now in (1.0, 2.0, 3.0)]
    assert [o.settings.enable_fp16_training for o in outcomes if o] == [False]
    path.write_text("GENESIS_SLOTS=3\n")
    reloader = SettingsReloader(settings, {})
    assert [o.cold for o in map(reloader.poll, (1.0, 2.0, 3.0)) if o] == [("GENESIS_SLOTS",)]


def test_shadowed_variables_are_reported(tmp_path: Path) -> None:
    running = Running(tmp_path / ".env", {"FP16_LOSS_SCALE": "4"})
    outcome = running.write("FP16_LOSS_SCALE=8\n")
    assert outcome is not None
    assert outcome.changed == {}
    assert outcome.shadowed == ("FP16_LOSS_SCALE",)
    assert logged(outcome) == ["settings_reloaded", "settings_shadowed"]


def test_a_removed_setting_is_warned_of_once(tmp_path: Path) -> None:
    running = Running(tmp_path / ".env", {})
    outcome = running.write("GENESIS_FLEET=auto\n")
    assert outcome is not None
    assert outcome.error is None
    assert ["GENESIS_FLEET" in warning for warning in outcome.removed] == [True]
    assert logged(outcome) == ["settings_reloaded", "settings_removed"]
    outcome = running.write("FP16_LOSS_SCALE=8\nGENESIS_FLEET=off\n")
    assert outcome is not None
    assert logged(outcome) == ["settings_reloaded"]


def test_an_unknown_name_is_warned_of_once(tmp_path: Path) -> None:
    running = Running(tmp_path / ".env", {})
    outcome = running.write("GENESIS_ENV=production\nGENESIS_SLOT=2\nFP16_LOSS_SCALE=8\n")
    assert outcome is not None
    assert ["GENESIS_SLOT " in warning for warning in outcome.unknown] == [True]
    assert logged(outcome) == ["settings_reloaded", "settings_unknown"]
    outcome = running.write("GENESIS_SLOT=2\nFP16_LOSS_SCALE=4\n")
    assert outcome is not None
    assert logged(outcome) == ["settings_reloaded"]


def test_a_requested_reload_reads_an_unchanged_file_too(running: Running) -> None:
    outcome = running.reloader.reload()
    assert outcome.error is None
    assert outcome.changed == {}


def test_a_folder_in_its_place_is_reported_and_leaks_nothing(running: Running) -> None:
    running.path.unlink()
    running.path.mkdir()
    outcome = running.poll()
    assert outcome is not None
    assert "cannot be read" in str(outcome.error)
    open_files = set()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # another thread has closed it
            open_files.add(link.readlink())
    assert running.path not in open_files


def test_a_pipe_or_an_oversized_file_changes_nothing(running: Running) -> None:
    running.write("ENABLE_FP16_TRAINING=false\n")
    running.path.unlink()
    os.mkfifo(running.path)
    outcome = running.poll()
    assert outcome is not None
    assert "regular file" in str(outcome.error)
    assert not outcome.settings.enable_fp16_training
    running.path.unlink()
    outcome = running.write("# x\n" * (MAX_BYTES // 4) + "ENABLE_FP16_TRAINING=true\n")
    assert outcome is not None
    assert "larger than" in str(outcome.error)
    assert not outcome.settings.enable_fp16_training


@pytest.mark.parametrize(
    "content",
    [
        b"enable_fp16_training=false\n",
        b"ENABLE_FP16_TRAINING=true\nEnable_FP16_Training = off\n",
        b"GENESIS_ENABLE_FP16_TRAINING=0\n",
        b"ENABLE_FP16=no\n",
        b"DISABLE_FP16_TRAINING=true\n",
        b"ENABLE_FP16_TRAINING: false\n",
        b"ENABLE_FP16_TRAINING='false\n",
        b"ENABLE_FP16_TRAINING=flase\n",
        b"ENABLE_FP16_TRAINING=disabled\n",
        b"ENABLE_FP16_TRAINING=fp32\n",
        b"ENABLE_FP16_TRAINING := false\n",
        b"ENABLE_FP16_TRAINING == false\n",
        b"ENABLE_FP16_TRAINING => false\n",
        b"declare -x ENABLE_FP16_TRAINING=false\n",
        b"ENV ENABLE_FP16_TRAINING false\n",
        b"- ENABLE_FP16_TRAINING=false\n",
        b'{"ENABLE_FP16_TRAINING": false}\n',
        b"GENESIS_SLOTS=2\n\xef\xbb\xbfENABLE_FP16_TRAINING=false\n",
        b"\xe2\x80\x8bENABLE_FP16_TRAINING=false\n",
        b"ENABLE_FP16_TRAINING" + b" " * 200_000 + b"!\n",  # read at once, not in minutes
        b"ENABLE_FP16_TRAINING=none\n",
        b"ENABLE_FP16_TRAINING=maybe\n",
        b"ENABLE_FP16_TRAINING=untrue\n",
        b"ENABLE_FP16_TRAINING=!true\n",
        b"ENABLE_FP16_TRAINING=00\n",
        b"ENABLE_FP16_TRAINING=$FLAG\n",
        b"ENABLE_FP16_TRAINING=\xe2\x80\x9cfalse\xe2\x80\x9d\n",  # curly quotes
        b"ENABLE_FP16_TRAINING:\n  false\n",
        b"ENABLE-FP16-TRAINING=false\n",
        b"Environment=ENABLE_FP16_TRAINING=false\n",  # from a unit of systemd
        b"GENESIS_SLOTS=2\nEnvironment = 'ENABLE_FP16_TRAINING=false' 'A=b'\n",
        b"Environment=A=b ENABLE_FP16_TRAINING=false\n",
        b'DefaultEnvironment="A=b" "ENABLE_FP16_TRAINING=false"\n',
        b"ENABLE FP16 TRAINING: no\n",
        b"ENABLE_FP16_TRAINING=true\nenable.fp16.training none\n",
        "ENABLE_FP16_TRAINING=false\r\n".encode("utf-16"),
        "GENESIS_SLOTS=2\nENABLE_FP16_TRAINING=false\n".encode("utf-16-le"),
    ],
)
def test_a_wrong_line_that_was_meant_to_demand_fp32_does(running: Running, content: bytes) -> None:
    running.path.write_bytes(content)
    outcome = running.poll()
    assert outcome is not None
    assert not outcome.settings.enable_fp16_training
    assert outcome.changed == {"ENABLE_FP16_TRAINING": "true -> false"}
    note = "was taken for ENABLE_FP16_TRAINING=false, so all training is in FP32"
    assert note in str(outcome.error)
    assert logged(outcome) == ["settings_refused"]
    assert running.poll() is None, "reported once"
    outcome = running.write("ENABLE_FP16_TRAINING=true\n")
    assert outcome is not None
    assert outcome.settings.enable_fp16_training


@pytest.mark.parametrize(
    "content",
    [
        "enable_fp16_training=true\n",
        "ENABLE_FP16_TRAINING := 'True'\nGENESIS_PRECISION=bf16\n",
        "ENABLE_FP16_TRAINING=treu\n",
        "ENABLE_FP16_TRAINING=enabled\n",
        "ENABLE_FP16_TRAINING: fp16 # ENABLE_FP16_TRAINING=false\n",
        "ENABLE_FP16_TRAINING=true\nFP16_LOSS_SCALE=none\n",
        "DISABLE_FP16_TRAINING=false\n",
        "# ENABLE_FP16_TRAINING=false\nFP16_LOSS_SCALE=lots\n",
        "; ENABLE_FP16_TRAINING=false\nFP16_LOSS_SCALE=lots\n",
        "# one\u2028ENABLE_FP16_TRAINING=false\x0cENABLE_FP16_TRAINING=0\nFP16_LOSS_SCALE=lots\n",
        "FP16_LOSS_SCALE" + " " * 200_000 + "!\n",
        "GENESIS_AGENTS__A__FP16_ENABLED=false\n",
    ],
)
def test_a_wrong_line_that_does_not_mean_fp32_changes_nothing(
    running: Running, content: str
) -> None:
    outcome = running.write(content)
    assert outcome is not None
    assert outcome.settings.enable_fp16_training
    assert "FP16" in str(outcome.error)
    assert "was taken" not in str(outcome.error)
    assert outcome.changed == {}
