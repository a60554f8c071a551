"""The worker as its parent sees it: a real process, its event file, its stdin, its exit code."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from agents.policy.tasks import TASKS
from genesis_fp16.domain.run_spec import TrainerOptions
from genesis_fp16.plugins.agent_folder import read_preflight
from infrastructure.events import EventTail, PrecisionState, SetPrecision
from infrastructure.events.command import Lease, Stop
from infrastructure.events.event import (
    CheckpointSaved,
    Evaluated,
    Notice,
    PhaseStarted,
    PrecisionChanged,
    PreflightDone,
    Progress,
    Published,
    Resumed,
    Started,
    StepStats,
)

FP16 = PrecisionState(requested="fp16", effective="fp16", reason="default")
FP32 = PrecisionState(requested="fp16", effective="fp32", reason="flag")
Start = Callable[..., Any]


def test_a_twin_repeats_a_run_on_its_data_and_publishes_nothing(
    start: Start, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    first = start(1, settings={"epochs": 2})
    assert first.end() == 0, first.log
    later = start(2, run_folder=tmp_path / "later", settings={"epochs": 1})  # records more
    assert later.end() == 0, later.log
    twin = start(3, run_folder=tmp_path / "twin", repeats=run, settings={"epochs": 2})
    assert twin.end() == 0, twin.log
    assert [event.phase for event in twin.of(PhaseStarted)] == ["train"]
    assert twin.of(Evaluated)[-1].metrics == first.of(Evaluated)[-1].metrics
    assert first.of(Published)
    assert not twin.of(Published)
    lost = start(4, run_folder=tmp_path / "other", repeats=tmp_path / "gone")
    assert lost.end() == 1
    assert "cannot repeat" in lost.finished.error


def test_whole_run(start: Start, tmp_path: Path) -> None:
    attempt = start(preloaded=False, precision=FP16)
    assert attempt.end() == 0, attempt.log
    kinds = [event.kind for event in attempt.events]
    order = [kind for kind in kinds if kind in ("started", "published", "finished")]
    assert order == ["started", "published", "finished"]
    started = attempt.of(Started)[0]
    assert isinstance(started, Started)
    assert started.pid == attempt.process.pid
    assert [event.phase for event in attempt.of(PhaseStarted)] == ["collect", "train", "publish"]
    assert attempt.of(Progress)[-1].done == 4
    steps = attempt.of(StepStats)
    assert sum(event.attempted for event in steps) == 100
    assert sum(event.fp16 for event in steps) == 100
    assert steps[-1].loss < steps[0].loss
    assert attempt.of(Evaluated)[-1].epoch == 2
    published = attempt.of(Published)[0]
    assert (published.published, published.reason) == (True, "first")
    notices = [event for event in attempt.of(Notice) if event.event == "building"]
    assert notices[0].fields == {"transitions": "4"}
    assert attempt.finished.outcome == "done"
    assert (tmp_path / "agent" / "published" / "model.pt").exists()
    lengths = json.loads((tmp_path / "run" / "snapshot.json").read_text())
    assert all(length > 0 for length in lengths.values())
    assert "trains on 4" in attempt.log


def test_auto_is_measured_in_the_run_and_kept_for_the_next_attempt(
    start: Start, tmp_path: Path
) -> None:
    slow = {"pause": 0.01, "epochs": 4}
    auto = PrecisionState(requested="auto", effective="auto", reason="default")
    first = start(1, precision=auto, trainer=TrainerOptions(), settings=slow)
    first.until(lambda event: isinstance(event, StepStats))
    first.command(Stop(reason="test"))
    assert first.end() == 75
    (measured,) = first.of(PreflightDone)
    verdict = measured.report.verdict
    state = PrecisionState(requested="auto", effective=verdict, reason="measured")
    assert [event.state for event in first.of(PrecisionChanged)] == [state]
    assert read_preflight(tmp_path / "agent") == measured.report

    second = start(2, precision=auto, trainer=TrainerOptions(), settings={**slow, "pause": 0.0})
    assert second.end() == 0, second.log
    assert not second.of(PreflightDone)
    assert [event.state for event in second.of(PrecisionChanged)] == [state]


def test_notices_that_the_machine_is_taken_away_lead_to_a_checkpoint(
    start: Start, tmp_path: Path
) -> None:
    """Of a scheduler by a signal, or of a cloud by a file; `test_preemption.py` has the URLs."""
    slow, notice = {"pause": 0.01, "epochs": 40}, tmp_path / "spot"
    attempt = start(1, settings=slow, preemption_file=notice)
    attempt.until(lambda event: isinstance(event, StepStats))
    notice.touch()
    assert attempt.end() == 75, attempt.log
    [told] = [event for event in attempt.of(Notice) if event.event == "preemption_noticed"]
    assert str(notice) in told.fields["notice"]
    notice.unlink()
    second = start(2, settings=slow, preemption_file=notice)
    second.until(lambda event: isinstance(event, StepStats))
    assert second.of(Resumed)[0].step == attempt.of(CheckpointSaved)[-1].step
    os.kill(second.process.pid, signal.SIGUSR1)
    assert second.end() == 75, second.log
    [told] = [event for event in second.of(Notice) if event.event == "preemption_noticed"]
    assert told.fields["notice"].startswith("preempted: SIGUSR1")


def test_stopped_while_training_resumes_on_the_same_data(start: Start) -> None:
    slow = {"pause": 0.01, "epochs": 4}
    first = start(1, settings=slow)
    first.until(lambda event: isinstance(event, StepStats))
    first.command(Stop(reason="test"))
    assert first.end() == 75
    assert first.finished.outcome == "stopped"
    assert not first.of(Published)

    second = start(2, settings={**slow, "pause": 0.0, "collect": "9"})
    assert second.end() == 0, second.log
    assert "trains on 4" in second.log
    assert [event.phase for event in second.of(PhaseStarted)] == ["train", "publish"]
    resumed = second.of(Resumed)[0]
    assert resumed.step > 0
    steps = sum(event.attempted for event in first.of(StepStats) + second.of(StepStats))
    assert steps == 200


def test_a_policy_rolls_back_stops_resumes_and_publishes(start: Start, tmp_path: Path) -> None:
    """The built-in agent whose batches depend on its weights, and which collects nothing."""
    changes = {
        "agent": "policy",
        "entry_point": "agents.policy_agent:PolicyAgent",
        "precision": PrecisionState(requested="bf16", effective="bf16", reason="operator"),
        "settings": {
            "task": "brackets",
            "rounds": "1",
            "rounds_per_epoch": "17",
            "steps_per_round": "1",
            "learning_rate": "0.003",
            "prompts_per_round": "4",
            "completions_per_prompt": "4",
        },
    }
    first = start(1, **changes)
    first.until(lambda event: isinstance(event, StepStats) and event.precision == "bf16")
    first.command(SetPrecision(state=FP32))
    changed = first.until(
        lambda event: isinstance(event, PrecisionChanged) and event.state.effective == "fp32"
    )
    assert set(changed.state.roles.values()) == {"fp32/fp32/fp32"}
    first.command(Stop(reason="test"))
    assert first.end() == 75, first.log
    second = start(2, **changes)
    assert second.end() == 0, second.log
    assert second.of(Resumed)[0].step > 0
    steps = sum(event.attempted for event in first.of(StepStats) + second.of(StepStats))
    assert steps == TASKS["brackets"].warm_up_rounds + 1
    published = second.of(Published)[0]
    assert published.published, published.reason
    assert "held-out reward 0." in published.reason
    assert (tmp_path / "agent" / "published" / "brackets" / "policy.json").exists()


def test_a_worker_ends_with_its_lease_and_a_later_one_replaces_it(start: Start) -> None:
    attempt = start(settings={"pause": 0.01, "epochs": 1000})
    attempt.until(lambda event: isinstance(event, StepStats))

    def extend(seconds: float) -> float:
        lease = Lease(lease_until=time.monotonic() + seconds)
        attempt.process.stdin.write(lease.model_dump_json().encode() + b"\n")
        attempt.process.stdin.flush()
        return lease.lease_until

    extend(2.0)
    until = extend(3.0)
    assert attempt.process.wait(timeout=300) == -signal.SIGALRM
    assert time.monotonic() > until - 0.1
    assert "command_rejected" not in {event.event for event in attempt.of(Notice)}


def test_stop_while_collecting_keeps_what_was_recorded(start: Start, tmp_path: Path) -> None:
    attempt = start(settings={"collect": "endless"})
    attempt.until(lambda event: isinstance(event, Progress) and event.done > 5)
    attempt.command(Stop(reason="test"))
    assert attempt.end() == 75
    assert not (tmp_path / "run" / "snapshot.json").exists()
    recorded = [path.read_text() for path in (tmp_path / "agent" / "replay").iterdir()]
    assert sum(text.count("\n") for text in recorded) > 5


def test_end_of_stdin_and_sigterm_mean_stop(start: Start, tmp_path: Path) -> None:
    slow = {"pause": 0.01, "epochs": 50}
    abandoned = start(1, settings=slow)
    terminated = start(2, settings=slow, agent_folder=tmp_path / "b", run_folder=tmp_path / "b")
    abandoned.until(lambda event: isinstance(event, StepStats))
    assert abandoned.process.stdin is not None
    abandoned.process.stdin.close()
    terminated.until(lambda event: isinstance(event, StepStats))
    terminated.process.terminate()
    assert abandoned.end() == 75
    assert terminated.end() == 75


def test_flag_flip_is_acknowledged_and_returns_with_its_scale(
    start: Start,
) -> None:
    attempt = start(precision=FP16, settings={"pause": 0.005, "epochs": 6})
    attempt.until(lambda event: isinstance(event, StepStats))
    attempt.command(SetPrecision(state=FP32))
    flipped = attempt.until(lambda e: isinstance(e, PrecisionChanged) and e.state == FP32)
    assert isinstance(flipped, PrecisionChanged)
    assert flipped.loss_scale == 1.0
    attempt.until(lambda e: isinstance(e, StepStats) and e.precision == "fp32")
    attempt.command(SetPrecision(state=FP16))
    back = attempt.until(lambda e: isinstance(e, PrecisionChanged) and e.state == FP16)
    assert isinstance(back, PrecisionChanged)
    assert back.loss_scale > 1.0
    assert attempt.end() == 0, attempt.log
    steps = attempt.of(StepStats)
    assert sum(event.attempted for event in steps) == 300
    assert 0 < sum(event.fp16 for event in steps) < 300


def test_flag_flip_within_the_seconds_of_collecting_holds_from_the_first_step(
    start: Start,
) -> None:
    attempt = start(
        precision=FP16,
        budget_seconds=3.0,
        budget_transitions=1_000_000,
        settings={"collect": "endless", "epochs": 1},
    )
    attempt.until(lambda event: isinstance(event, Progress))
    attempt.command(SetPrecision(state=FP32))
    assert attempt.end() == 0, attempt.log
    assert [event.state for event in attempt.of(PrecisionChanged)] == [FP32]
    assert sum(event.fp16 for event in attempt.of(StepStats)) == 0


def test_an_exception_of_collect_fails_the_run_and_keeps_the_recorded_transitions(
    start: Start, tmp_path: Path
) -> None:
    cases = {"raises": "RuntimeError: the simulator is gone", "exits": "called sys.exit(0)"}
    attempts = {
        kind: start(number, settings={"collect": kind}, agent_folder=tmp_path / kind)
        for number, kind in enumerate(cases)
    }
    for kind, message in cases.items():
        attempt = attempts[kind]
        assert attempt.end() == 1
        assert attempt.finished.outcome == "failed"
        assert f"line failed while collecting: {message} (line_agent.py:" in attempt.finished.error
        assert "worker.log" in attempt.finished.error
        assert "Traceback" in attempt.log
        recorded = [path.read_text() for path in (tmp_path / kind / "replay").iterdir()]
        assert sum(text.count("\n") for text in recorded) == 2


WRONG_TYPES = {
    "dicts": "Transition, got dict",
    "nothing": "TrainingJob or OnPolicyJob, got NoneType",
}


def test_wrong_types_are_reported_in_the_contracts_terms(start: Start, tmp_path: Path) -> None:
    attempts = {
        kind: start(number, settings={"collect": kind}, run_folder=tmp_path / kind)
        for number, kind in enumerate(WRONG_TYPES)
    }
    for kind, message in WRONG_TYPES.items():
        assert attempts[kind].end() == 1
        assert message in attempts[kind].finished.error


def test_full_disk_is_named_with_its_remedy(start: Start) -> None:
    """Not even worker.log can be written, as on a disk that is really full."""
    attempt = start(log=Path("/dev/full"), settings={"collect": "full"})
    assert attempt.end() == 75
    assert attempt.finished.outcome == "disk_full"
    error = attempt.finished.error
    assert "the disk is full" in error
    assert "/data/replay" in error
    assert "free some space" in error


def test_a_run_whose_end_cannot_be_reported_waits_for_room_or_a_stop(
    start: Start, tmp_path: Path, until
) -> None:
    silent = start(log=Path("/dev/full"), events=Path("/dev/full"), settings={"collect": "2"})
    until((tmp_path / "agent" / "published" / "model.pt").exists)
    assert silent.process.poll() is None
    silent.command(SetPrecision(state=FP32))
    silent.command(Stop(reason="test"))
    assert silent.end() == 75
    assert silent.events == []


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to mount a small disk")
def test_a_full_disk_pauses_the_training_and_loses_nothing(
    start: Start, tmp_path: Path, small_disk, until
) -> None:
    run = tmp_path / "run"
    full = run / "fill"
    often = {"checkpoint_interval_seconds": 0.05, "precision": FP16}
    with small_disk(run):
        first = start(1, settings={"pause": 0.01, "epochs": 1000}, **often)
        first.until(lambda event: isinstance(event, CheckpointSaved))
        fill(full)
        first.command(Stop(reason="test"))
        assert first.end() == 75
        full.unlink()
        saved = first.of(CheckpointSaved)[-1]

        log = tmp_path / "second.log"
        knobs = {"pause": 0.01, "epochs": 8, "chatty": True}  # time to fill the disk
        second = start(2, log=log, settings=knobs, **often)
        resumed = second.until(lambda event: isinstance(event, StepStats) and event.step > 0)
        assert resumed.step >= saved.step
        fill(full)
        until(lambda: "can be written: [Errno 28]" in log.read_text())
        second.command(SetPrecision(state=FP32))
        waiting = second.spec.events_path.stat().st_size
        until(lambda: log.read_text().count("paused") > 1)  # the command cost a step and no more
        assert second.process.poll() is None
        assert second.spec.events_path.stat().st_size == waiting
        full.unlink()
        assert second.end() == 0, log.read_text()
        tail = EventTail(second.spec.events_path)
        events = list(tail.read())
    assert tail.malformed == 0
    steps = [event for event in events if isinstance(event, StepStats)]
    start_step = next(event.step for event in events if isinstance(event, Resumed))
    assert start_step >= saved.step
    assert sum(event.attempted for event in steps) == 400 - start_step
    assert 0 < sum(event.fp16 for event in steps) < 400 - start_step
    chats = [e.event for e in events if isinstance(e, Notice) and e.event.startswith("chat")]
    assert chats == [f"chat{number + 1}" for number in range(len(chats))]
    assert len(chats) >= 400 - start_step
    notices = {event.event for event in events if isinstance(event, Notice)}
    assert {"checkpoint_not_saved", "pause_ended"} <= notices
    assert events[-1].kind == "finished"


def fill(path: Path) -> None:
    """Leave no room on the disk of *path*."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def test_lost_snapshot_sets_the_checkpoints_aside_and_trains_from_the_start(
    start: Start, tmp_path: Path
) -> None:
    first = start(1, settings={"pause": 0.01, "epochs": 4})
    first.until(lambda event: isinstance(event, StepStats))
    first.command(Stop(reason="test"))
    assert first.end() == 75
    snapshot = tmp_path / "run" / "snapshot.json"
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    snapshot.write_text('{"torn')

    second = start(2, settings={"epochs": 1, "collect": "5"})
    assert second.end() == 0, second.log
    lost = [notice for notice in second.of(Notice) if notice.event == "snapshot_lost"]
    assert [notice.level for notice in lost] == ["warning"]
    assert lost[0].fields["file"] == str(snapshot)
    assert not second.of(Resumed)
    assert "trains on 9" in second.log  # the four recorded before and five new ones
    aside = tmp_path / "run" / "checkpoints.set-aside-2"
    assert sorted(path.name for path in aside.iterdir()) == saved
    assert snapshot.with_name("snapshot.json.set-aside-2").exists()
    assert json.loads(snapshot.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_no_descendant_outlives_the_worker(start: Start, tmp_path: Path) -> None:
    attempt = start(settings={"collect": "forks", "epochs": 1})
    assert attempt.end() == 0, attempt.log
    pids = [int(pid) for pid in (tmp_path / "run" / "pids").read_text().split()]
    assert len(pids) == 2
    assert not any(_alive(pid) for pid in pids)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_too_little_data_is_a_successful_run(start: Start) -> None:
    attempt = start(settings={"needed": 100, "collect": "steals"})
    assert attempt.end() == 0, attempt.log  # nor could the agent read the commands
    published = attempt.of(Published)[0]
    assert not published.published
    assert "2 transitions recorded, 100" in published.reason


def test_a_run_without_data_has_an_outcome_of_its_own(start: Start) -> None:
    attempt = start(settings={"needed": 100, "collect": "0"})
    assert attempt.end() == os.EX_NOINPUT, attempt.log
    assert attempt.finished.outcome == "no_data"
    published = attempt.of(Published)[0]
    assert not published.published
    assert "0 transitions recorded, 100 needed" in published.reason
    assert published.reason.endswith("/replay holds none")


MISCONFIGURED = {
    "settings": ({"settings": {"epochs": "many"}}, "GENESIS_AGENTS__LINE__SETTINGS__EPOCHS=many"),
    "module": ({"entry_point": "no_such_module:X"}, "'no_such_module'"),
    "device": ({"device": "cuda:99"}, "device 'cuda:99'"),
    "half": ({"settings": {"half": True}}, "secretly"),
    "kernel": ({"settings": {"recurrent": True}, "precision": FP16}, "'rnn' (LSTM)"),
    "kept": ({"keep_fp32": ("rnm",)}, "keep_fp32 names 'rnm'"),
}


def test_a_training_that_diverges_in_fp32_is_not_retried(start: Start, tmp_path: Path) -> None:
    attempts = {
        state: start(
            number,
            precision=state,
            run_folder=tmp_path / str(number),
            settings={"diverges": True, "epochs": 1},
        )
        for number, state in enumerate((FP32, FP16))
    }
    assert attempts[FP32].end() == 78
    assert "another attempt" in attempts[FP32].finished.error
    assert "look for NaN" in attempts[FP32].finished.error
    assert attempts[FP16].end() == 1


def test_an_error_that_no_retry_can_fix_exits_with_78(start: Start, tmp_path: Path) -> None:
    attempts = {
        case: start(number, run_folder=tmp_path / case, **changes)
        for number, (case, (changes, _)) in enumerate(MISCONFIGURED.items())
    }
    for case, attempt in attempts.items():
        assert attempt.end() == 78, attempt.log
        assert attempt.finished.outcome == "misconfigured"
        assert MISCONFIGURED[case][1] in attempt.finished.error


def test_modules_that_the_operator_keeps_in_fp32_train_in_an_fp16_run(start: Start) -> None:
    knobs = {"recurrent": True, "epochs": 1}
    attempt = start(settings=knobs, precision=FP16, keep_fp32=("rnn",))
    assert attempt.end() == 0, attempt.log
    assert sum(stats.fp16 for stats in attempt.of(StepStats)) == 50
