"""What is known of a training in half precision, after its attempt has ended, too."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from genesis_fp16.domain.run_spec import RunSpec
from genesis_fp16.worker.rung.seen import Seen
from infrastructure.events import EventWriter, PrecisionState
from infrastructure.events.event import (
    BaseEvent,
    OverflowDiagnosed,
    PartStats,
    PrecisionChanged,
    StepStats,
)
from infrastructure.precision_lab.rung import LossHistory

HALF = PrecisionState(requested="fp16", effective="fp16", reason="default")
ROLLED_BACK = PrecisionState(requested="fp16", effective="fp32", reason="guard")
NAMES = ["critic", "actor", "temperature"]


def changed(state: PrecisionState) -> PrecisionChanged:
    return PrecisionChanged(step=1, state=state, loss_scale=1.0)


def steps(*failing: str, precision: Any = "fp16", **losses: float) -> StepStats:
    parts = [
        PartStats(
            name=name,
            attempted=9,
            overflow=9 * (name in failing),
            loss=losses.get(name, 1.0),
            loss_scale=2.0**number,
        )
        for number, name in enumerate(NAMES)
    ]
    loss = sum(losses.get(name, 1.0) for name in NAMES) / 3
    return StepStats(
        step=1, applied=1, loss=loss, loss_scale=64.0, precision=precision, parts=tuple(parts)
    )


def seen(*events: BaseEvent) -> Seen:
    result = Seen()
    for event in events:
        result.note(event)
    return result


def test_a_resumed_run_knows_what_its_first_attempts_have_shown(tmp_path: Path) -> None:
    spec = RunSpec.model_construct(attempt=3, attempt_folder=tmp_path / "attempts" / "3")
    assert math.isnan(Seen.of_earlier_attempts(spec).histories[""].first)
    overflow = OverflowDiagnosed(
        step=2,
        precision="fp16",
        loss_scale=1.0,
        overflows=1,
        cause="forward",
        module="head (Linear)",
        operation="mm",
        seconds=0.0,
    )
    shown = [changed(HALF), steps(critic=4.0), steps("actor", critic=2.0), overflow]
    for number, events in ((1, [*shown, changed(ROLLED_BACK)]), (2, [changed(ROLLED_BACK)])):
        folder = tmp_path / "attempts" / str(number)
        folder.mkdir(parents=True)
        with EventWriter(folder / "events.ndjson") as write:
            for event in [*events, steps(precision="fp32", critic=9.0)]:
                write(event)
    known = Seen.of_earlier_attempts(spec)
    assert (known.half, known.half_is_default, known.loss_scale) == ("fp16", True, 64.0)
    assert known.histories[""] == LossHistory(2.0, 4.0 / 3)
    assert list(known.suspects) == ["head"]
    [failed] = known.failed_parts(NAMES)
    assert (failed.name, failed.loss_scale) == ("actor", 2.0)
    assert known.histories["critic"] == LossHistory(4.0, 2.0)


def test_without_a_failure_all_parts_are_searched() -> None:
    assert [part.name for part in seen(changed(ROLLED_BACK)).failed_parts(NAMES)] == NAMES


def test_a_loss_scale_is_known_of_steps_in_fp16_alone() -> None:
    assert seen(changed(ROLLED_BACK), steps(precision="fp32")).loss_scale is None
    bf16 = PrecisionState(**{**_fields(HALF), "effective": "bf16"})
    known = seen(changed(bf16), steps(precision="bf16"))
    assert [part.loss_scale for part in known.failed_parts(NAMES)] == [None] * 3
    raised = PrecisionState(**{**_fields(HALF), "parts": {"critic": "bf16"}})
    known = seen(changed(raised), steps("critic", "actor"))
    assert [part.loss_scale for part in known.failed_parts(NAMES)] == [64.0, 2.0]


@pytest.mark.parametrize(
    ("second", "failed", "other_failed"),
    [("critic", ["critic"], True), ("actor", ["critic", "actor"], False)],
)
def test_parts_that_fail_one_after_another_are_searched_together(
    second: str, failed: list[str], other_failed: bool
) -> None:
    raised = PrecisionState(**{**_fields(HALF), "parts": {"critic": "bf16"}})
    known = seen(
        changed(HALF),
        steps("critic"),
        changed(ROLLED_BACK),
        changed(raised),
        steps(second),
        changed(ROLLED_BACK),
    )
    assert [part.name for part in known.failed_parts(NAMES)] == failed
    assert known.other_failed is other_failed


def _fields(state: PrecisionState) -> dict[str, Any]:
    return {"requested": state.requested, "effective": state.effective, "reason": state.reason}
