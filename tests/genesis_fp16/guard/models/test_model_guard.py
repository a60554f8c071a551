"""When the guard acts on what it has seen, and what it keeps."""

from collections.abc import Callable
from pathlib import Path

import pytest

from genesis_fp16.domain.guard import GuardSettings
from genesis_fp16.domain.predictor import BETS, JudgedOutcomes
from genesis_fp16.guard.models import ModelGuard, read_watched
from genesis_fp16.guard.models.model_guard import TakenBack


class Hands:
    """What the guard does to models, in memory."""

    def __init__(self) -> None:
        self.taken: list[TakenBack] = []
        self.kept: dict[str, str] = {}
        self.busy = False

    def take_back(self, failed: TakenBack) -> bool:
        if not self.busy:
            self.taken.append(failed)
        return not self.busy


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def make_guard(tmp_path: Path, hands: Hands) -> Callable[..., ModelGuard]:
    def make(**settings: object) -> ModelGuard:
        return ModelGuard(
            tmp_path,
            GuardSettings(**settings),
            hands.take_back,
            lambda _agent, _reading: None,
            lambda: hands.kept,
            clock=lambda: 0.0,
        )

    return make


def bad(version: str = "v2", count: int = 200) -> JudgedOutcomes:
    return JudgedOutcomes(
        version=version,
        held_out_loss=0.5,
        base_rate_loss=0.8,
        count=count,
        loss_sum=2.0 * count,
        expected_loss_sum=0.5 * count,
        evidence=[0.5 * count] * len(BETS),
    )


def test_a_failed_version_is_taken_back_once_and_remembered(
    make_guard: Callable[..., ModelGuard], hands: Hands, tmp_path: Path
) -> None:
    guard = make_guard()
    guard.add("qa", bad())
    hands.busy = True
    guard.tick()
    assert hands.taken == []
    hands.busy = False
    guard.tick()
    guard.tick()
    [taken] = hands.taken
    assert (taken.agent, taken.version, taken.never_to) == ("qa", "v2", ())
    assert "log loss 2.0000 on the last outcomes against 0.5000 held out" in taken.explanation
    assert read_watched(tmp_path, "qa").taken_back == ["v2"]
    guard.close()
    again = make_guard()
    again.add("qa", bad("v1"))
    again.tick()
    assert hands.taken[-1].version == "v1"
    assert hands.taken[-1].never_to == ("v2",)


def test_evidence_adds_up_over_a_restart(
    make_guard: Callable[..., ModelGuard], hands: Hands
) -> None:
    some = bad(count=25).model_copy(update={"evidence": [6.0] * len(BETS)})
    guard = make_guard()
    guard.add("qa", some)
    guard.tick()
    guard.close()
    assert hands.taken == []
    guard = make_guard()
    guard.add("qa", some)
    guard.tick()
    assert [taken.version for taken in hands.taken] == ["v2"]


def test_another_version_starts_from_nothing(
    make_guard: Callable[..., ModelGuard], hands: Hands
) -> None:
    some = bad(count=25).model_copy(update={"evidence": [6.0] * len(BETS)})
    guard = make_guard()
    guard.add("qa", some)
    guard.add("qa", some.model_copy(update={"version": "v3"}))
    guard.tick()
    assert hands.taken == []


def test_a_version_that_an_operator_keeps_is_left_alone(
    make_guard: Callable[..., ModelGuard], hands: Hands
) -> None:
    guard, hands.kept = make_guard(), {"qa": "v2"}
    guard.add("qa", bad())
    guard.tick()
    assert hands.taken == []
    hands.kept = {"qa": "v1"}
    guard.add("qa", bad())
    guard.tick()
    assert [taken.version for taken in hands.taken] == ["v2"], "only that version was kept"


def test_a_guard_that_is_switched_off_only_watches(
    make_guard: Callable[..., ModelGuard], hands: Hands
) -> None:
    guard = make_guard(model_guard_enabled=False)
    guard.add("qa", bad())
    guard.tick()
    assert hands.taken == []
    guard.settings = GuardSettings()
    guard.tick()
    assert len(hands.taken) == 1


def test_a_damaged_file_costs_what_it_held(
    make_guard: Callable[..., ModelGuard], hands: Hands, tmp_path: Path
) -> None:
    (tmp_path / "model-guard").mkdir()
    (tmp_path / "model-guard" / "qa.json").write_text("{")
    guard = make_guard()
    guard.add("qa", bad())
    guard.tick()
    assert len(hands.taken) == 1
