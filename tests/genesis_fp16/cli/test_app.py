"""What the commands answer, on a real store and real plugins."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from genesis_fp16.cli.app import app
from genesis_fp16.domain.attempt import attempt_folder
from genesis_fp16.domain.errors import GenesisError
from genesis_fp16.domain.run import Ending, Run, RunState, RunTransition
from genesis_fp16.settings import load_settings
from genesis_fp16.store import Store
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import Evaluated, PrecisionChanged, Started

PROGRAM = Path(sys.executable).parent / "genesis-fp16"
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")

Ask = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(folder: Path) -> Path:
    """A working folder in which the built-in agent is off."""
    (folder / ".env").write_text("GENESIS_AGENTS__SE_DARWIN__ENABLED=false\n")
    return folder


@pytest.fixture
def ask() -> Ask:
    def ask(*arguments: str) -> Result:
        return CliRunner().invoke(app, arguments)

    return ask


@pytest.fixture
def ask_json(ask: Ask) -> Callable[..., object]:
    def ask_json(*arguments: str) -> object:
        result = ask(*arguments, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return ask_json


@pytest.fixture
def store() -> Iterator[Store]:
    with closing(Store.open(load_settings())) as store:
        yield store


@pytest.fixture
def run(store: Store) -> Run:
    """A run that failed in its first attempt, with events."""
    run = store.enqueue("a", first_seed=1)
    attempt = store.begin_attempt(run.id, "incarnation")
    assert attempt is not None
    folder = attempt_folder(load_settings().home, attempt)
    folder.mkdir(parents=True)
    (folder / "worker.log").touch()
    with EventWriter(folder / "events.ndjson") as emit:
        emit(Started(pid=1, device="cpu", torch_version="2"))
        emit(PrecisionChanged(step=0, state=FP16, loss_scale=65536.0))
        emit(PrecisionChanged(step=40, state=BY_FLAG, loss_scale=1.0))
        emit(Evaluated(epoch=1, metrics={"mse": 0.25}, primary="mse"))
    store.end_attempt(
        attempt,
        Ending(exit_code=1),
        RunTransition(state=RunState.FAILED, failed=True),
        finished_at=9e9,
    )
    return run


def test_before_any_store_there_are_no_runs_and_that_is_no_error(
    ask: Ask, ask_json: Callable[..., object], folder: Path
) -> None:
    assert ask_json("runs") == []
    result = ask("runs")
    assert result.exit_code == 0
    assert "no runs recorded in .genesis" in result.stdout
    assert ask_json("precision")["overrides"] == []
    assert ask_json("precision", "clear") == {"agent": None, "cleared": False}
    assert isinstance(ask("runs", "show", "nope").exception, GenesisError)
    assert not (folder / ".genesis").exists()


@pytest.mark.parametrize(
    "words", [("runs",), ("precision", "show"), ("precision", "set", "fp32", "--reason", "r")]
)
def test_a_database_that_is_gone_is_no_empty_one(
    ask: Ask, run: Run, folder: Path, words: tuple[str, ...]
) -> None:
    home = folder / ".genesis"
    for file in home.glob("genesis.db*"):
        file.rename(folder / file.name)
    (home / "runs" / run.id).mkdir(parents=True, exist_ok=True)
    assert "genesis.db is gone" in str(ask(*words).exception)
    assert not (home / "genesis.db").exists()
    (home / "genesis.db").touch()
    assert "genesis.db is empty" in str(ask(*words).exception)
    assert (home / "genesis.db").stat().st_size == 0


def test_runs_are_listed(ask: Ask, ask_json: Callable[..., object], run: Run) -> None:
    (row,) = ask_json("runs")
    assert (row["id"], row["agent"], row["state"], row["seed"]) == (run.id, "a", "failed", 1)
    assert run.id in ask("runs").stdout
    assert run.id in ask("runs", "--agent", "a").stdout


def test_an_agent_without_runs_is_told_apart_from_none_at_all(
    ask: Ask, ask_json: Callable[..., object], run: Run, install_plugin
) -> None:
    install_plugin("young")
    assert ask_json("runs", "--agent", "young") == []
    shown = ask("runs", "--agent", "young").stdout
    assert shown.startswith("no runs of young in .genesis")
    assert shown.endswith(" of a\n")
    refused = ask("runs", "--agent", "yuong")
    assert refused.exit_code == 2
    said = " ".join(refused.output.replace("│", " ").split())
    assert "no agent is named 'yuong'; did you mean young? known: a, " in said


@pytest.mark.parametrize("command", ["runs --agent", "runs show", "precision explain", "run"])
def test_arguments_that_are_not_utf8_are_refused(folder: Path, command: str) -> None:
    done = program(*command.split(), os.fsdecode(b"a\xff\x1b[2J"))
    assert (done.returncode, done.stdout) == (2, "")
    number = len(command.split()) + 1
    assert f"argument {number} is not UTF-8: 'a\\xff'" in done.stderr
    assert "\x1b" not in done.stderr
    assert not (folder / ".genesis").exists()


def test_run_is_shown_with_its_attempts_and_precision(
    ask: Ask, ask_json: Callable[..., object], run: Run, folder: Path
) -> None:
    shown = ask_json("runs", "show", run.id)
    (attempt,) = shown["attempts"]
    assert attempt["ending"] == "exit code 1"
    assert attempt["events"] == {"started": 1, "precision_changed": 2, "evaluated": 1}
    assert attempt["evaluation"]["metrics"] == {"mse": 0.25}
    assert Path(attempt["log"]).parent == Path(attempt["events_file"]).parent
    assert Path(attempt["events_file"]).exists()
    history = [
        (each["step"], each["effective"], each["reason"]) for each in shown["precision_history"]
    ]
    assert history == [(0, "fp16", "default"), (40, "fp32", "flag")]
    text = ask("runs", "show", run.id).stdout
    assert "worker.log" in text
    assert "2 precision_changed" in text


def test_a_run_whose_folder_was_removed_says_so(
    ask: Ask, ask_json: Callable[..., object], store: Store, run: Run, folder: Path
) -> None:
    store.record_folder_removed(run.id, "removed on a day, for a reason")
    shutil.rmtree(folder / ".genesis" / "runs" / run.id)
    shown = ask_json("runs", "show", run.id)
    assert shown["folder_removed"] == "removed on a day, for a reason"
    (attempt,) = shown["attempts"]
    assert (attempt["log"], attempt["events_file"], attempt["events"]) == (None, None, {})
    text = ask("runs", "show", run.id).stdout
    assert "folder, with log and events  removed on a day, for a reason" in text
    assert "worker.log" not in text


def test_of_a_folder_removed_in_part_the_rest_is_shown(ask: Ask, store: Store, run: Run) -> None:
    store.record_folder_removed(run.id, "removed on a day, for a reason")
    text = ask("runs", "show", run.id).stdout
    folder = Path(".genesis/runs").absolute() / run.id
    assert f"some is left in {folder}, see run_files_not_removed; the rest was removed on" in text
    assert str(folder / "attempts" / "1" / "worker.log") in text


def test_files_that_are_not_there_or_no_files_are_said_to_be_so(
    ask: Ask, ask_json: Callable[..., object], run: Run, folder: Path
) -> None:
    attempt = folder / ".genesis" / "runs" / run.id / "attempts" / "1"
    events = attempt / "events.ndjson"
    events.unlink()
    os.mkfifo(events)
    assert "events.ndjson cannot be read" in ask("runs", "show", run.id).stdout
    events.unlink()
    events.mkdir()
    assert "events.ndjson cannot be read: Is a directory" in ask("runs", "show", run.id).stdout
    shutil.rmtree(folder / ".genesis" / "runs" / run.id)
    text = ask("runs", "show", run.id).stdout
    assert "not there" in text
    assert "worker.log" not in text
    (shown,) = ask_json("runs", "show", run.id)["attempts"]
    assert (shown["log"], shown["events_file"], shown["events_trouble"]) == (None, None, "")


def test_agents_answer_without_a_daemon(
    ask: Ask,
    ask_json: Callable[..., object],
    install_plugin: Callable[..., None],
    folder: Path,
) -> None:
    install_plugin("fine")
    install_plugin("broken", "raise RuntimeError('no luck')")
    with (folder / ".env").open("a") as file:
        file.write('GENESIS_AGENTS__FINE__SCHEDULE="every 5m"\n')
    agents = {row["name"]: row for row in ask_json("agents")}
    assert agents["fine"]["state"] == "ready"
    assert agents["fine"]["schedule"] == "every 5m"
    assert agents["broken"]["state"] == "quarantined"
    assert "no luck" in agents["broken"]["reason"]
    assert agents["se-darwin"]["state"] == "disabled"
    text = ask("agents").stdout
    assert "broken is quarantined: importing broken_plugin failed: RuntimeError: no luck" in text


def test_override_is_set_shown_audited_and_cleared(
    ask: Ask, ask_json: Callable[..., object], install_plugin: Callable[..., None]
) -> None:
    install_plugin("fine")
    told = ask("precision", "set", "fp32", "--reason", "odd loss", "--for", "2h")
    assert told.exit_code == 0, told.output
    assert "fp32 for all agents until" in told.stdout
    ask_json("precision", "set", "bf16", "--agent", "fine", "--reason", "try it")
    for_all, for_one = ask_json("precision", "show")["overrides"]
    assert (for_all["agent"], for_all["precision"], for_all["reason"]) == (None, "fp32", "odd loss")
    assert for_all["expires_at"] - for_all["created_at"] == 7200
    assert (for_one["agent"], for_one["expires_at"]) == ("fine", None)
    assert "by " + for_all["actor"] in ask("precision").stdout
    cleared = ask_json("precision", "clear", "--reason", "it was the data")
    assert cleared == {"agent": None, "cleared": True}
    assert len(ask_json("precision")["overrides"]) == 1
    with closing(Store.open(load_settings())) as store:
        trail = [(each.action, each.reason) for each in store.overrides.audit()]
    assert trail == [
        ("precision clear", "it was the data"),
        ("precision set", "try it"),
        ("precision set", "odd loss"),
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "fp8", "--reason", "x"], "one of fp32, fp16, bf16, auto, got 'fp8'"),
        (["set", "fp32"], "--reason"),
        (["set", "fp32", "--reason", "  "], "reason"),
        (["set", "fp32", "--reason", "x", "--for", "soon"], "got 'soon'"),
        (["set", "fp32", "--reason", "x", "--for", "3000000d"], "ten years at most"),
        (["set", "fp32", "--reason", "x", "--for", "9" * 400 + "d"], "ten years at most"),
        (["set", "fp32", "--reason", "x", "--agent", "nobody"], "no agent is named 'nobody'"),
    ],
)
def test_wrong_override_is_refused(ask: Ask, arguments: list[str], said: str) -> None:
    result = ask("precision", *arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert not Path(".genesis").exists()


def test_a_reason_is_one_plain_line(ask: Ask, ask_json: Callable[..., object]) -> None:
    reason = "odd\n\x1b[31mloss\r" + "!" * 900
    assert ask("precision", "set", "fp32", "--reason", reason).exit_code == 0
    [override] = ask_json("precision")["overrides"]
    assert override["reason"].startswith("odd loss!!")
    assert len(override["reason"]) <= 500


def test_flag_that_outranks_an_override_is_said(ask: Ask, folder: Path) -> None:
    (folder / ".env").write_text("ENABLE_FP16_TRAINING=false\n")
    result = ask("precision", "set", "fp16", "--reason", "x")
    assert "FP32 stays in force" in result.stderr
    assert "demands FP32 for all (.env line 1)" in ask("precision").stdout


def test_config_names_sources_and_hides_secrets(
    ask_json: Callable[..., object], folder: Path
) -> None:
    (folder / ".env").write_text(
        "GENESIS_SLOTS=3\n"
        "GENESIS_DATABASE_URL=postgresql://me:hunter2@db/x\n"
        "GENESIS_AGENTS__A__SETTINGS__API_TOKEN=hunter2\n"
    )
    rows = {row["name"]: row for row in ask_json("config", "show")}
    assert (rows["GENESIS_SLOTS"]["value"], rows["GENESIS_SLOTS"]["source"]) == ("3", ".env line 1")
    assert rows["GENESIS_SEED"]["source"] == "default"
    assert "hunter2" not in json.dumps(rows)


def program(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environ},
    )


def test_error_is_a_message_and_an_exit_code() -> None:
    done = program("runs", GENESIS_SLOTS="many")
    assert done.returncode == 78
    assert done.stdout == ""
    assert "GENESIS_SLOTS=many (environment)" in done.stderr
    assert "Traceback" not in done.stderr
    done = program("runs", "show", "nope", "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "genesis-fp16: no run has the id 'nope': see genesis-fp16 runs\n"


def test_version_and_speed_of_import() -> None:
    assert program("--version").stdout.startswith("genesis-fp16 ")
    script = "import sys, genesis_fp16.cli.app; print(sorted(sys.modules))"
    modules = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    heavy = ("'torch'", "'sqlalchemy'", "'prometheus_client'")
    assert [name for name in heavy if name in modules] == []


def test_reader_that_has_seen_enough_is_no_error() -> None:
    done = subprocess.run(
        f"{PROGRAM} config show | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Traceback" not in done.stderr
