"""The worker as its parent sees it: a real process, its event file, its stdin, its exit code."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import JsonValue

from genesis_fp16.agent_files import read_preflight
from genesis_fp16.run_spec import RunSpec, TrainerOptions
from infrastructure.events import Event, EventTail, PrecisionState, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.events.event import (
    Evaluated,
    Finished,
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

AGENT = """
import itertools, sys, time
import torch
from pydantic import BaseModel
from infrastructure.agent_contract import *
from infrastructure.agent_contract.agent import InsufficientDataError


class Knobs(BaseModel):
    epochs: int = 2
    pause: float = 0.0
    collect: str = "4"
    needed: int = 1
    half: bool = False


class LineAgent:
    name = "line"
    contract_version = 1

    def schedule(self):
        return Schedule(every_seconds=3600)

    def settings_model(self):
        return Knobs

    def collect(self, context):
        kind = context.settings.collect
        count = int(kind) if kind.isdigit() else 2
        for number in range(count):
            yield Transition(group=f"g{number}", observation={"x": float(number)}, action={})
        if kind == "full":
            raise OSError(28, "No space left on device", "/data/replay")
        if kind == "dicts":
            yield {"x": 1.0}
        if kind == "forks":
            import subprocess
            sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
            nested = (
                "import subprocess; devnull = subprocess.DEVNULL; "
                "child = subprocess.Popen({!r}, start_new_session=True, stdout=devnull); "
                "print(child.pid)"
            )
            with open(context.run_folder / "pids", "w") as pids:
                subprocess.run([sys.executable, "-c", nested.format(sleep)], stdout=pids)
                apart = subprocess.Popen(sleep, start_new_session=True)
                pids.write(str(apart.pid))
        if kind == "raises":
            raise RuntimeError("the simulator is gone")
        if kind == "exits":
            sys.exit(0)
        if kind == "steals":
            assert sys.stdin.read() == ""
        if kind == "endless":
            while True:
                time.sleep(0.01)
                yield Transition(group="g", observation={"x": 1.0}, action={})

    def build_job(self, context, transitions):
        if len(transitions) < context.settings.needed:
            raise InsufficientDataError("transitions", len(transitions), context.settings.needed)
        if context.settings.collect == "nothing":
            return None
        print("trains on", len(transitions))
        context.logger.info("building", transitions=len(transitions))
        x = torch.tensor([[t.observation["x"]] for t in transitions])
        batch = {"x": x, "y": 2 * x}
        knobs = context.settings

        def batches(epoch):
            for _ in range(50):
                time.sleep(knobs.pause)
                yield batch

        def loss(forward, batch):
            return torch.nn.functional.mse_loss(forward(batch["x"]), batch["y"])

        def evaluate(forward):
            return Evaluation(
                metrics={"mse": float(loss(forward, batch))}, primary="mse", higher_is_better=False
            )

        model = torch.nn.Linear(1, 1)
        return TrainingJob(
            model=Half() if knobs.half else model,
            optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, fused=True),
            batches=batches,
            loss=loss,
            evaluate=evaluate,
            epochs=knobs.epochs,
        )

    def publish(self, context, model, report):
        torch.save(model.state_dict(), context.agent_folder / "model.pt")
        return Publication(published=True, reason="first", metrics=report.evaluation.metrics)


class Half(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.secretly = torch.nn.Linear(1, 1)

    def forward(self, x):
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            return self.secretly(x)
"""


class Attempt:
    """One worker process, started as the daemon starts it."""

    def __init__(
        self,
        folder: Path,
        number: int,
        log: Path | None = None,
        events: Path | None = None,
        **changes: object,
    ) -> None:
        attempt_folder = folder / "run" / f"attempt-{number}"
        attempt_folder.mkdir(parents=True)
        settings: dict[str, JsonValue] = {}
        values: dict[str, object] = {
            "run_id": "r1",
            "attempt": number,
            "incarnation": f"i{number}",
            "agent": "line",
            "entry_point": "line_agent:LineAgent",
            "agent_folder": folder / "agent",
            "run_folder": folder / "run",
            "attempt_folder": attempt_folder,
            "seed": 3,
            "device": "cpu",
            "threads": 1,
            "precision": FP32,
            "cpu_half": True,
            "trainer": TrainerOptions(
                loss_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000
            ),
            "budget_seconds": 30.0,
            "budget_transitions": 1000,
            "stats_interval_steps": 10,
            "baseline_interval_steps": 20,
            "checkpoint_interval_seconds": 60.0,
            "keep_checkpoints": 2,
            "settings": settings,
        }
        self.spec = RunSpec.model_validate(values | changes)
        path = attempt_folder / "spec.json"
        path.write_text(self.spec.model_dump_json())
        self._tail = EventTail(self.spec.events_path)
        self.events: list[Event] = []
        if events is not None:
            self.spec.events_path.symlink_to(events)
        with (log or attempt_folder / "worker.log").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "genesis_fp16.worker", str(path)],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def command(self, command: SetPrecision | Stop) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def until(self, matches: Callable[[Event], bool]) -> Event:
        """Wait for an event."""
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            ended = self.process.poll() is not None
            for event in self._tail.read():
                self.events.append(event)
                if matches(event):
                    return event
            if ended:
                break
            time.sleep(0.02)
        raise AssertionError(f"no such event among {self.events}\n{self.log}")

    def end(self) -> int:
        """Wait for the process to end by itself; its stdin stays open meanwhile."""
        code = self.process.wait(60)
        self.events.extend(self._tail.read())
        return code

    def of(self, kind: type) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def finished(self) -> Finished:
        last = self.events[-1]
        assert isinstance(last, Finished), self.log
        return last

    @property
    def log(self) -> str:
        return (self.spec.attempt_folder / "worker.log").read_text()


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Attempt]]:
    site = tmp_path / "site"
    site.mkdir()
    (site / "line_agent.py").write_text(textwrap.dedent(AGENT))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    started: list[Attempt] = []

    def start(number: int = 1, **changes: object) -> Attempt:
        started.append(Attempt(tmp_path, number, **changes))
        return started[-1]

    yield start
    for attempt in started:
        if attempt.process.poll() is None:
            os.killpg(attempt.process.pid, signal.SIGKILL)
            attempt.process.wait()
        assert attempt.process.stdin is not None
        attempt.process.stdin.close()


def test_whole_run(start: Callable[..., Attempt], tmp_path: Path) -> None:
    attempt = start(precision=FP16)
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
    assert len(attempt.of(Evaluated)) == 2
    published = attempt.of(Published)[0]
    assert (published.published, published.reason) == (True, "first")
    notices = [event for event in attempt.of(Notice) if event.event == "building"]
    assert notices[0].fields == {"transitions": "4"}
    assert attempt.finished.outcome == "done"
    assert (tmp_path / "agent" / "model.pt").exists()
    lengths = json.loads((tmp_path / "run" / "snapshot.json").read_text())
    assert all(length > 0 for length in lengths.values())
    assert "trains on 4" in attempt.log


def test_auto_is_measured_in_the_run_and_kept_for_the_next_attempt(
    start: Callable[..., Attempt], tmp_path: Path
) -> None:
    slow = {"pause": 0.01, "epochs": 4}
    auto = PrecisionState(requested="auto", effective="auto", reason="default")
    first = start(1, precision=auto, cpu_half=False, settings=slow)
    first.until(lambda event: isinstance(event, StepStats))
    first.command(Stop(reason="test"))
    assert first.end() == 75
    (measured,) = first.of(PreflightDone)
    verdict = measured.report.verdict
    state = PrecisionState(requested="auto", effective=verdict, reason="measured")
    assert [event.state for event in first.of(PrecisionChanged)] == [state]
    assert read_preflight(tmp_path / "agent") == measured.report

    second = start(2, precision=auto, cpu_half=False, settings={**slow, "pause": 0.0})
    assert second.end() == 0, second.log
    assert not second.of(PreflightDone)
    assert [event.state for event in second.of(PrecisionChanged)] == [state]


def test_budget_of_transitions_ends_collecting(start: Callable[..., Attempt]) -> None:
    attempt = start(budget_transitions=7, settings={"collect": "endless", "epochs": 1})
    assert attempt.end() == 0, attempt.log
    assert "trains on 7" in attempt.log


def test_stopped_while_training_resumes_on_the_same_data(start: Callable[..., Attempt]) -> None:
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


def test_stop_while_collecting_keeps_what_was_recorded(
    start: Callable[..., Attempt], tmp_path: Path
) -> None:
    attempt = start(settings={"collect": "endless"})
    attempt.until(lambda event: isinstance(event, Progress) and event.done > 5)
    attempt.command(Stop(reason="test"))
    assert attempt.end() == 75
    assert not (tmp_path / "run" / "snapshot.json").exists()
    recorded = [path.read_text() for path in (tmp_path / "agent" / "replay").iterdir()]
    assert sum(text.count("\n") for text in recorded) > 5


def test_end_of_stdin_and_sigterm_mean_stop(start: Callable[..., Attempt], tmp_path: Path) -> None:
    slow = {"pause": 0.01, "epochs": 50}
    abandoned = start(1, settings=slow)
    told = start(2, settings=slow, agent_folder=tmp_path / "b", run_folder=tmp_path / "b")
    abandoned.until(lambda event: isinstance(event, StepStats))
    assert abandoned.process.stdin is not None
    abandoned.process.stdin.close()
    told.until(lambda event: isinstance(event, StepStats))
    told.process.terminate()
    assert abandoned.end() == 75
    assert told.end() == 75


def test_flag_flip_is_acknowledged_and_returns_with_its_scale(
    start: Callable[..., Attempt],
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
    start: Callable[..., Attempt],
) -> None:
    attempt = start(
        precision=FP16,
        budget_seconds=0.5,
        budget_transitions=1_000_000,
        settings={"collect": "endless", "epochs": 1},
    )
    attempt.until(lambda event: isinstance(event, Progress))
    attempt.command(SetPrecision(state=FP32))
    assert attempt.end() == 0, attempt.log
    assert [event.state for event in attempt.of(PrecisionChanged)] == [FP32]
    assert sum(event.fp16 for event in attempt.of(StepStats)) == 0


def test_whatever_collect_raises_is_a_failure_that_keeps_the_recorded(
    start: Callable[..., Attempt], tmp_path: Path
) -> None:
    cases = {"raises": "RuntimeError: the simulator is gone", "exits": "called sys.exit(0)"}
    attempts = {
        kind: start(number, settings={"collect": kind}, agent_folder=tmp_path / kind)
        for number, kind in enumerate(cases)
    }
    for kind, said in cases.items():
        attempt = attempts[kind]
        assert attempt.end() == 1
        assert attempt.finished.outcome == "failed"
        assert f"line failed while collecting: {said} (line_agent.py:" in attempt.finished.error
        assert "worker.log" in attempt.finished.error
        assert "Traceback" in attempt.log
        recorded = [path.read_text() for path in (tmp_path / kind / "replay").iterdir()]
        assert sum(text.count("\n") for text in recorded) == 2


WRONG_TYPES = {
    "dicts": "collect() must yield Transition, got dict",
    "nothing": "build_job() must return TrainingJob, got NoneType",
}


def test_wrong_types_are_told_in_the_contracts_words(
    start: Callable[..., Attempt], tmp_path: Path
) -> None:
    attempts = {
        kind: start(number, settings={"collect": kind}, run_folder=tmp_path / kind)
        for number, kind in enumerate(WRONG_TYPES)
    }
    for kind, said in WRONG_TYPES.items():
        assert attempts[kind].end() == 1
        assert said in attempts[kind].finished.error


def test_full_disk_is_named_with_its_remedy(start: Callable[..., Attempt]) -> None:
    """Not even worker.log can be written, as on a disk that is really full."""
    attempt = start(log=Path("/dev/full"), settings={"collect": "full"})
    assert attempt.end() == 1
    error = attempt.finished.error
    assert "line failed while collecting: the disk is full" in error
    assert "/data/replay" in error
    assert "free some space" in error
    silent = start(2, log=Path("/dev/full"), events=Path("/dev/full"))
    assert silent.end() == 1


@pytest.mark.parametrize("how", ["torn", "missing"])
def test_lost_snapshot_sets_the_checkpoints_aside_and_trains_afresh(
    start: Callable[..., Attempt], tmp_path: Path, how: str
) -> None:
    first = start(1, settings={"pause": 0.01, "epochs": 4})
    first.until(lambda event: isinstance(event, StepStats))
    first.command(Stop(reason="test"))
    assert first.end() == 75
    snapshot = tmp_path / "run" / "snapshot.json"
    saved = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    snapshot.write_text('{"torn')
    if how == "missing":
        snapshot.unlink()

    second = start(2, settings={"epochs": 1, "collect": "5"})
    assert second.end() == 0, second.log
    lost = [each for each in second.of(Notice) if each.event == "snapshot_lost"]
    assert [each.level for each in lost] == ["warning"]
    assert lost[0].fields["file"] == str(snapshot)
    assert not second.of(Resumed)
    assert "trains on 9" in second.log  # the four recorded before and five anew
    aside = tmp_path / "run" / "checkpoints.set-aside-2"
    assert sorted(path.name for path in aside.iterdir()) == saved
    assert snapshot.with_name("snapshot.json.set-aside-2").exists() == (how == "torn")
    assert json.loads(snapshot.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")
def test_no_descendant_outlives_the_worker(start: Callable[..., Attempt], tmp_path: Path) -> None:
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


def test_too_little_data_is_a_successful_run(start: Callable[..., Attempt]) -> None:
    attempt = start(settings={"needed": 100, "collect": "steals"})
    assert attempt.end() == 0, attempt.log  # nor could the agent read the commands
    published = attempt.of(Published)[0]
    assert not published.published
    assert "2 transitions recorded, 100 needed" in published.reason


MISCONFIGURED = {
    "settings": ({"settings": {"epochs": "many"}}, "GENESIS_AGENTS__LINE__SETTINGS__EPOCHS=many"),
    "module": ({"entry_point": "no_such_module:X"}, "'no_such_module' cannot be found"),
    "device": ({"device": "cuda:99"}, "device 'cuda:99'"),
    "half": ({"settings": {"half": True}}, "secretly"),
}


def test_what_no_retry_can_help_exits_with_78(
    start: Callable[..., Attempt], tmp_path: Path
) -> None:
    attempts = {
        case: start(number, run_folder=tmp_path / case, **changes)
        for number, (case, (changes, _)) in enumerate(MISCONFIGURED.items())
    }
    for case, attempt in attempts.items():
        assert attempt.end() == 78, attempt.log
        assert attempt.finished.outcome == "misconfigured"
        assert MISCONFIGURED[case][1] in attempt.finished.error
