from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infrastructure.events import Command, PrecisionState, SaveCheckpoint, SetPrecision
from infrastructure.events.command import Stop
from infrastructure.fleet import Ended, Trainings
from infrastructure.training.loop import Steps, TrainingResult, statistics
from tests.infrastructure.fleet.twins import differences
from tests.infrastructure.fleet.whole_trainings import (
    ERROR,
    EXIT,
    NAN,
    OVERFLOW,
    RANDOM,
    WIDE,
    Attempt,
    Plan,
    run_together,
)


@pytest.fixture(autouse=True)
def _windows_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics are reported every few steps, at no time of their own."""
    monkeypatch.setattr(statistics, "_SHORTEST_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(statistics, "_LONGEST_WINDOW_SECONDS", 1e9)


def precision(effective: Any) -> SetPrecision:
    state = PrecisionState(requested="fp16", effective=effective, reason="operator")
    return SetPrecision(state=state)


def compare(
    plans: list[Plan], folder: Path, join_rounds: Mapping[str, int] | None = None
) -> tuple[list[str], dict[str, Any]]:
    """Train *plans* alone and together, and compare all that can be seen of each."""
    alone = {f"m{i}": Attempt(plan, folder / f"alone{i}") for i, plan in enumerate(plans)}
    for attempt in alone.values():
        attempt.run_alone()
    together = {f"m{i}": Attempt(plan, folder / f"together{i}") for i, plan in enumerate(plans)}
    told = run_together(together, join_rounds or {})
    for name, attempt in together.items():
        different = differences(attempt.seen(), alone[name].seen(), name)
        assert different == [], different
    return told, {name: attempt.end for name, attempt in together.items()}


COMMANDS = st.sampled_from(
    [precision("fp32"), precision("fp16"), precision("bf16"), SaveCheckpoint(), Stop(reason="x")]
)
KINDS = st.sampled_from([OVERFLOW, OVERFLOW, NAN, RANDOM, ERROR, WIDE, EXIT])
PLANS = st.builds(
    Plan,
    seed=st.integers(0, 5),
    widths=st.sampled_from([(8, 16, 4), (8, 16, 4), (8, 16, 4), (3, 17, 1)]),
    rows=st.sampled_from([8, 8, 8, 7]),
    dropout=st.sampled_from([0.0, 0.0, 0.3]),
    precision=st.sampled_from(["fp32", "fp32", "fp16", "bf16"]),
    epochs=st.integers(1, 3),
    patience=st.sampled_from([None, None, 1]),
    batches=st.integers(1, 5),
    accumulate=st.sampled_from([1, 1, 1, 1, 2]),
    special=st.one_of(st.just({}), st.dictionaries(st.integers(0, 4), KINDS, max_size=2)),
    commands=st.dictionaries(st.integers(1, 9), COMMANDS, max_size=2),
    draws=st.booleans(),
    config=st.sampled_from(
        [{}, {}, {"max_grad_norm": None}, {"adaptive_clip": True}, {"nonfinite_loss_patience": 2}]
    ),
    options=st.sampled_from(
        [{}, {}, {"baseline_interval_steps": 2}, {"telemetry_interval_steps": 2}]
    ),
)


@pytest.mark.process  # trains for seconds
@settings(max_examples=20)
@given(plans=st.lists(PLANS, min_size=2, max_size=4), data=st.data())
def test_each_training_is_the_same_as_alone(plans: list[Plan], data: st.DataObject) -> None:
    rounds = {f"m{i}": data.draw(st.sampled_from([0, 0, 1, 4])) for i in range(len(plans))}
    with TemporaryDirectory() as folder:
        compare(plans, Path(folder), rounds)


@pytest.mark.parametrize(
    ("kind", "error"),
    [(ERROR, "the loss fails"), (EXIT, "ends the process"), (WIDE, "cannot be multiplied")],
)
def test_a_failing_training_costs_itself(kind: int, error: str, tmp_path: Path) -> None:
    plans = [Plan(), Plan(seed=1, special={2: kind}), Plan(seed=2)]
    _, ends = compare(plans, tmp_path)
    assert error in str(ends["m1"])
    assert [ends[name].outcome for name in ("m0", "m2")] == ["done", "done"]


def test_a_training_that_has_begun_obeys_while_others_get_ready(tmp_path: Path) -> None:
    log: list[str] = []

    class Logged(Attempt):
        def steps(self) -> Steps[TrainingResult]:
            log.append(f"{self._folder.name} gets ready")
            return (yield from super().steps())

        def _due(self) -> list[Command]:
            log.append(f"{self._folder.name} asks for commands")
            return super()._due()

    attempts = {name: Logged(Plan(), tmp_path / name) for name in ("a", "b", "c")}
    run_together(attempts, {})
    assert log[:6] == [
        "a gets ready",
        "a asks for commands",
        "b gets ready",
        "a asks for commands",
        "b asks for commands",
        "c gets ready",
    ]


def test_a_training_that_no_longer_improves_ends_alone(tmp_path: Path) -> None:
    plans = [Plan(seed=seed, batches=2, epochs=8, patience=seed or None) for seed in range(3)]
    _, ends = compare(plans, tmp_path)
    epochs = [ends[name].epochs for name in ("m0", "m1", "m2")]
    assert epochs[0] == 8
    assert min(epochs) < 8


def test_gradients_that_overflow_for_good_stop_one_training(tmp_path: Path) -> None:
    halted = Plan(
        seed=1,
        precision="fp16",
        special=dict.fromkeys(range(4), OVERFLOW),
        config={"floor_policy": "halt", "min_loss_scale": 512.0},
    )
    _, ends = compare([Plan(), halted, Plan(seed=2, precision="fp16")], tmp_path)
    assert "loss scale at its floor" in str(ends["m1"])
    assert [ends[name].outcome for name in ("m0", "m2")] == ["done", "done"]


def test_weights_are_restored_and_random_numbers_are_a_training_s_own(tmp_path: Path) -> None:
    nan = Plan(
        seed=1,
        batches=6,
        special={3: NAN, 4: NAN},
        commands={2: SaveCheckpoint()},
        config={"nonfinite_loss_patience": 2},
    )
    drawing = Plan(seed=2, special={1: RANDOM, 2: RANDOM}, draws=True, dropout=0.3)
    compare([nan, Plan(draws=True), drawing, Plan(seed=3, dropout=0.3)], tmp_path)


@pytest.mark.parametrize("first", ["alone", "together"])
def test_a_stopped_training_resumes_either_way(first: str, tmp_path: Path) -> None:
    plan, other = Plan(epochs=3, dropout=0.3), Plan(seed=1, epochs=4, dropout=0.3)
    whole = Attempt(plan, tmp_path / "whole", {})
    whole.run_alone()
    stop = {6: Stop(reason="the daemon drains")}
    attempts = [Attempt(plan, tmp_path / "parts", commands) for commands in (stop, {})]
    for attempt, together in zip(attempts, [first == "together", first == "alone"], strict=True):
        if together:
            neighbour = Attempt(other, tmp_path / "other")
            run_together({"m0": attempt, "m1": neighbour}, {})
        else:
            attempt.run_alone()
    assert [attempt.end.outcome for attempt in attempts] == ["stopped", "done"]
    seen, expected = attempts[1].seen(), whole.seen()
    for part in ("end", "model"):
        assert differences(seen[part], expected[part], part) == []


def test_each_training_is_told_how_it_is_stepped(tmp_path: Path) -> None:
    long = {"epochs": 1, "batches": 30}
    plans = [Plan(**long), Plan(seed=1, **long), Plan(seed=2, norm=True), Plan(seed=3)]
    plans[3].options = {"profile_steps": 2}
    attempts = {f"m{i}": Attempt(plan, tmp_path / f"{i}") for i, plan in enumerate(plans)}
    told = run_together(attempts, {})
    assert "m2: trains alone: layer '2' is a LayerNorm" in "\n".join(told)
    assert "m3: trains alone: its steps are profiled" in told
    assert "m0: stepped together with 1 other training while" in told[0]
    verdicts = [line for line in told if line.startswith("m0:") and " times as fast" in line]
    assert len(verdicts) == 1


def test_a_rollback_of_one_changes_what_is_told_of_all(tmp_path: Path) -> None:
    plans = [Plan(seed=seed, precision="bf16") for seed in range(3)]
    plans[1].commands = {4: precision("fp32")}
    told, _ = compare(plans, tmp_path)
    first, rest = told[:3], told[3:]
    assert all("stepped together with 2 other trainings" in line for line in first)
    assert [line.partition(" while")[0] for line in rest] == [
        "m0: stepped together with 1 other training",
        "m1: trains alone: no other member's model of its shape trains in fp32",
        "m2: stepped together with 1 other training",
        "m2: trains alone: no other member's model of its shape trains in bf16",  # m0 has ended
        "m2: trains alone: no other member's model has its shape",
    ]


def test_a_short_training_is_not_measured(tmp_path: Path) -> None:
    attempts = {f"m{i}": Attempt(Plan(seed=i), tmp_path / f"{i}") for i in range(2)}
    for attempt in attempts.values():
        batches = attempt.job.batches
        attempt.job = replace(attempt.job, batches=lambda epoch, own=batches: list(own(epoch)))
    told = run_together(attempts, {})
    assert "too short to measure" in told[0]


def test_a_removed_training_leaves_the_others(tmp_path: Path) -> None:
    trainings: Trainings[TrainingResult] = Trainings()
    alone = Attempt(Plan(), tmp_path / "alone")
    alone.run_alone()
    kept, removed = Attempt(Plan(), tmp_path / "kept"), Attempt(Plan(seed=1), tmp_path / "removed")
    trainings.add("kept", kept.steps())
    trainings.add("removed", removed.steps())
    with pytest.raises(ValueError, match="a training 'kept'"):
        trainings.add("kept", kept.steps())
    assert [trainings.advance(), trainings.advance()] == [{}, {}]  # one begins in each round
    assert trainings.standings["kept"].with_others == 1
    trainings.remove("removed")
    ended: dict[str, Ended[TrainingResult]] = {}
    while len(trainings):
        ended = trainings.advance()
    kept.end = ended["kept"].result
    assert differences(kept.seen()["model"], alone.seen()["model"], "") == []
    assert trainings.standings == {}


def test_a_training_that_freezes_a_layer_goes_on_alone(tmp_path: Path) -> None:
    def freezing(place: str) -> Attempt:
        attempt = Attempt(Plan(epochs=3), tmp_path / place)
        evaluate, first = attempt.job.evaluate, attempt.job.model[0]

        def freeze_and_evaluate(forward: Any) -> Any:
            first.requires_grad_(False)
            return evaluate(forward)

        attempt.job = replace(attempt.job, evaluate=freeze_and_evaluate)
        return attempt

    alone, together = freezing("alone"), freezing("together")
    alone.run_alone()
    told = run_together({"m0": together, "m1": Attempt(Plan(seed=1, epochs=3), tmp_path / "b")}, {})
    assert differences(together.seen(), alone.seen(), "") == []
    assert "m0: trains alone: parameter 0.weight is frozen" in told
