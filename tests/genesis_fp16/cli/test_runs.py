"""``genesis-fp16 runs``, on a real store."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import Result

from genesis_fp16.daemon.operator import RunEndedError, UnknownNameError
from genesis_fp16.domain.attempt import Attempt, attempt_folder
from genesis_fp16.domain.run import Ending, PartTotals, Run, RunState, RunSummary, RunTransition
from genesis_fp16.settings import load_settings
from genesis_fp16.store import DaemonLock, Store
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import (
    Evaluated,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    Progress,
    Started,
)

Ask = Callable[..., Result]
FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
BY_FLAG = PrecisionState(requested="fp16", effective="fp32", reason="flag")


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
        early = {"epoch": "7", "epochs": "20", "reason": "none was better"}
        emit(Notice(event="training_stopped_early", fields=early))
        doubt = {"finding": "leak", "problem": "x alone predicts y", "remedy": "remove x"}
        for _ in "ab":  # an attempt that resumes says it again
            emit(Notice(level="warning", event="training_data_doubtful", fields=doubt))
        constant = {"problem": "constant fields are excluded: z"}
        emit(Notice(level="warning", event="training_data_incomplete", fields=constant))
    store.end_attempt(
        attempt,
        Ending(exit_code=1),
        RunTransition(state=RunState.FAILED, failed=True),
        finished_at=9e9,
        error="worn out\nat last\x1b[2J",
    )
    return run


def test_runs_are_listed(ask: Ask, ask_json: Callable[..., object], run: Run) -> None:
    (row,) = ask_json("runs")
    assert (row["id"], row["agent"], row["state"], row["seed"]) == (run.id, "a", "failed", 1)
    assert run.id in ask("runs").stdout
    assert run.id in ask("runs", "--agent", "a").stdout


def test_an_agent_without_runs_is_distinguished_from_an_unknown_one(
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
    assert "'yuong'; did you mean young? known: a, " in said


def test_a_run_is_cancelled_once_and_by_name(ask: Ask, store: Store, run: Run) -> None:
    waiting = store.enqueue("b", first_seed=1)
    said = ask("runs", "cancel", waiting.id).stdout
    assert f"{waiting.id} of b will be cancelled" in said
    assert f"no daemon serves {load_settings().home.absolute()} now; the next one does it" in said
    with DaemonLock(load_settings()):
        assert "a running daemon does it at once" in ask("runs", "cancel", waiting.id).stdout
    cancelled = store.run(waiting.id)
    assert cancelled is not None
    assert cancelled.cancel_requested
    ended = ask("runs", "cancel", run.id)
    assert isinstance(ended.exception, RunEndedError)
    assert run.id in str(ended.exception)
    assert "failed" in str(ended.exception)
    unknown = ask("runs", "cancel", "nobody")
    assert "'nobody'" in str(unknown.exception)


def test_the_queue_is_shown_and_changed(
    ask: Ask, ask_json: Callable[..., object], store: Store, run: Run
) -> None:
    first, second = store.enqueue("b", first_seed=1), store.enqueue("c", first_seed=1)
    said = ask("runs", "move", second.id, "--first", "--reason", "urgent").stdout
    assert said == f"{second.id} of c starts before all other runs that wait\n"
    waiting = ask_json("runs", "queue")
    assert [(one["run"]["id"], one["place"]) for one in waiting] == [(second.id, 1), (first.id, 2)]
    assert waiting[0]["waits_for"] == "daemon"
    assert "no daemon serves" in ask("runs", "queue").stdout
    assert ask_json("runs", "show", second.id)["waits"]["place"] == 1
    assert "no daemon serves" in ask("runs", "show", second.id).stdout
    assert ask_json("runs", "move", second.id, "--last") == {"run": second.id, "to": "last"}
    assert [one["run"]["id"] for one in ask_json("runs", "queue")] == [first.id, second.id]
    ended = ask("runs", "move", run.id, "--first")
    assert "only queued runs wait" in str(ended.exception)


def test_a_run_is_named_by_its_number(
    ask: Ask, ask_json: Callable[..., object], store: Store, run: Run
) -> None:
    assert ask_json("runs", "show", "#1")["id"] == run.id
    [_, listed] = ask("runs").stdout.splitlines()
    assert listed.split()[:3] == [run.id, "a", "#1"]
    assert ["number", "#1"] in [
        line.split() for line in ask("runs", "show", "a#1").stdout.splitlines()
    ]
    waiting = store.enqueue("b", first_seed=1)
    assert ask_json("runs", "show", "b#1")["id"] == waiting.id
    ambiguous = ask("runs", "show", "#1")
    assert isinstance(ambiguous.exception, UnknownNameError)
    assert "a#1, b#1" in str(ambiguous.exception)
    for name in ("#2", "c#1", "#0", "#999999999999"):
        unknown = ask("runs", "show", name)
        assert isinstance(unknown.exception, UnknownNameError)
        assert f"no run has the number {name!r}" in str(unknown.exception)
    assert ask_json("runs", "cancel", "b#1") == {"run": waiting.id, "cancel_requested": True}


def test_run_is_shown_with_its_attempts_and_precision(
    ask: Ask, ask_json: Callable[..., object], run: Run, folder: Path
) -> None:
    shown = ask_json("runs", "show", run.id)
    (attempt,) = shown["attempts"]
    assert attempt["ending"] == "exit code 1"
    assert attempt["events"] == {
        "started": 1,
        "precision_changed": 2,
        "evaluated": 1,
        "notice": 4,
    }
    assert attempt["training_stopped_early"]["epoch"] == "7"
    problems = ["x alone predicts y; remove x", "constant fields are excluded: z"]
    assert attempt["data_problems"] == problems
    assert attempt["evaluation"]["metrics"] == {"mse": 0.25}
    assert Path(attempt["log"]).parent == Path(attempt["events_file"]).parent
    assert Path(attempt["events_file"]).exists()
    history = [
        (state["step"], state["effective"], state["reason"]) for state in shown["precision_history"]
    ]
    assert history == [(0, "fp16", "default"), (40, "fp32", "flag")]
    text = ask("runs", "show", run.id).stdout
    assert "worker.log" in text
    assert "2 precision_changed" in text


def test_the_parts_of_a_job_are_shown(
    ask: Ask, ask_json: Callable[..., object], store: Store, run: Run
) -> None:
    assert ask_json("runs", "show", run.id)["parts"] is None
    assert "part " not in ask("runs", "show", run.id).stdout
    critic = PartTotals(steps=24, overflows=3, loss=0.5, loss_scale=512.0)
    parts = {"critic": critic, "actor": PartTotals(steps=12, nonfinite_losses=1)}
    store.update_summary(run.id, RunSummary(steps=36, parts=parts))
    assert ask_json("runs", "show", run.id)["parts"]["critic"] == {
        "steps": 24,
        "overflows": 3,
        "nonfinite_losses": 0,
        "loss": 0.5,
        "loss_scale": 512.0,
    }
    table = [line.split() for line in ask("runs", "show", run.id).stdout.splitlines()]
    assert ["part", "steps", "overflows", "nonfinite_losses", "loss", "loss_scale"] in table
    assert ["critic", "24", "3", "0", "0.5", "512.0"] in table
    assert ["actor", "12", "0", "1", "1.0"] in table, "its loss is not known"


def begin_run(store: Store) -> tuple[Run, Attempt, Path]:
    """A run, its first attempt, and the path of its events."""
    run = store.enqueue("b", first_seed=1)
    attempt = store.begin_attempt(run.id, "incarnation")
    assert attempt is not None
    folder = attempt_folder(load_settings().home, attempt)
    folder.mkdir(parents=True)
    return run, attempt, folder / "events.ndjson"


def test_an_attempt_that_release_0_1_trained_beside_others_is_shown(
    ask: Ask, ask_json: Callable[..., object], store: Store
) -> None:
    run, attempt, events = begin_run(store)
    with EventWriter(events) as emit:
        fields = {"reason": "together with 3 others"}
        emit(Notice(level="info", event="fleet_changed", fields=fields))
    transition = RunTransition(state=RunState.SUCCEEDED)
    store.end_attempt(attempt, Ending(exit_code=0), transition, finished_at=9e9, error=None)
    store.update_attempt(attempt.incarnation, ending="with its fleet: killed by signal 9")
    [shown] = ask_json("runs", "show", run.id)["attempts"]
    assert shown["ending"] == "with its fleet: killed by signal 9"
    assert shown["events"] == {"notice": 1}
    assert "killed by signal 9" in ask("runs", "show", run.id).stdout


def test_a_run_under_way_tells_what_its_worker_does(
    ask: Ask, ask_json: Callable[..., object], store: Store
) -> None:
    run, attempt, events = begin_run(store)
    with EventWriter(events) as emit:
        emit(PhaseStarted(phase="collect"))
        [shown] = ask_json("runs", "show", run.id)["attempts"]
        assert shown["activity"] == "collecting"
        emit(Progress(phase="collect", done=1500, total=12_000, unit="candidates"))
    assert "1,500 of 12,000 candidates" in ask("runs", "show", run.id).stdout
    ended = RunTransition(state=RunState.SUCCEEDED)
    store.end_attempt(attempt, Ending(exit_code=0), ended, finished_at=9e9)
    [shown] = ask_json("runs", "show", run.id)["attempts"]
    assert (shown["activity"], shown["ending"]) == (None, "exit code 0")


def test_a_failed_attempt_keeps_its_reason(ask: Ask, run: Run) -> None:
    assert "worn out at last\n" in ask("runs", "show", run.id).stdout


@pytest.mark.process
def test_long_event_files_are_read_in_part_unless_asked(
    ask: Ask, ask_json: Callable[..., object], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    [whole] = ask_json("runs", "show", run.id)["attempts"]
    path = Path(whole["events_file"])
    with EventWriter(path) as emit:
        for step in range(400):
            emit(PrecisionChanged(step=step, state=FP16, loss_scale=1.0))
    size = path.stat().st_size
    monkeypatch.setattr("genesis_fp16.cli.runs.EVENTS_READ_BYTES", size // 2)
    [shown] = ask_json("runs", "show", run.id)["attempts"]
    assert 40 < shown["events"]["precision_changed"] < 60
    assert shown["events_not_read_bytes"] == pytest.approx(size * 7 / 8, abs=500)
    text = ask("runs", "show", run.id).stdout
    assert "not counted: see --all" in text
    assert "left out: see --all" in text
    [complete] = ask_json("runs", "show", run.id, "--all")["attempts"]
    assert complete["events_not_read_bytes"] == 0
    assert complete["events"]["precision_changed"] >= 400
    text = ask("runs", "show", run.id, "--all").stdout
    assert "left out" not in text
    assert text.count("\n") > 400


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
    assert "  removed on a day, for a reason" in text
    assert "worker.log" not in text


def test_what_remains_of_a_removed_folder_is_shown(ask: Ask, store: Store, run: Run) -> None:
    store.record_folder_removed(run.id, "removed on a day, for a reason")
    text = ask("runs", "show", run.id).stdout
    folder = Path(".genesis/runs").absolute() / run.id
    assert f"left in {folder}, see run_files_not_removed" in text
    assert str(folder / "attempts" / "1" / "worker.log") in text


def test_missing_and_irregular_files_are_named(
    ask: Ask, ask_json: Callable[..., object], run: Run, folder: Path
) -> None:
    attempt = folder / ".genesis" / "runs" / run.id / "attempts" / "1"
    events = attempt / "events.ndjson"
    events.unlink()
    os.mkfifo(events)
    assert "events.ndjson cannot" in ask("runs", "show", run.id).stdout
    events.unlink()
    events.mkdir()
    assert "regular file" in ask("runs", "show", run.id).stdout
    shutil.rmtree(folder / ".genesis" / "runs" / run.id)
    text = ask("runs", "show", run.id).stdout
    assert "not there" in text
    assert "worker.log" not in text
    (shown,) = ask_json("runs", "show", run.id)["attempts"]
    assert (shown["log"], shown["events_file"], shown["events_trouble"]) == (None, None, "")
