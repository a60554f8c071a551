"""Output of the provoked mismatch."""

import csv
import math
from pathlib import Path

import pytest

pytest.importorskip("transformers", reason="not installed: the extra 'policy' has it")

from agents.policy.settings import PolicySettings
from benchmarks.guard.provoke import Course, Plan, draw, format_courses, write_samples
from genesis_fp16.domain.guard import Decision, GuardState, Trigger
from infrastructure.events import PrecisionState, Role
from infrastructure.events.event import MismatchMeasured
from infrastructure.events.mismatch_report import Combination, MismatchReport


def sample(round_: int, k3: float, half: str) -> MismatchMeasured:
    report = MismatchReport(
        policy=half, rollout=half, tokens=90, sequences=16, k1=k3, k2=k3, k3=k3,
        mean_difference=0.01, max_difference=0.1, pearson=0.9, chi2_token=k3, chi2_sequence=k3,
        effective_sample_size=0.9, sequence_std=0.1, slope=math.nan, seconds=0.25,
        combinations=(Combination(policy="fp32", rollout="fp32", k3=1e-13, mean_difference=0.0),),
    )  # fmt: skip
    return MismatchMeasured(step=2 * round_, round=round_, report=report)


@pytest.fixture
def course() -> Course:
    plan = Plan(
        name="BF16, guarded", half=True, guarded=True, limit=1e-5, seed=0,
        policy=PolicySettings(),
    )  # fmt: skip
    trip = Decision(
        agent="policy",
        state=GuardState.TRIPPED,
        trigger=Trigger.MISMATCH,
        step=12,
        reason="too far apart",
        roles={Role.ROLLOUT: "fp16"},
    )
    return Course(
        plan=plan,
        samples=[sample(5, 2.5e-5, "bf16"), sample(10, 4e-7, "fp16")],
        rewards=[(5, 0.1), (10, 0.625)],
        trips=[trip],
        changes=[(12, PrecisionState(requested="bf16", effective="fp16", reason="guard"))],
        seconds=12.5,
    )


def test_the_table_shows_both_ends_of_the_mismatch(course: Course) -> None:
    lines = format_courses([course]).splitlines()
    assert lines[1].split() == [
        "BF16,", "guarded", "2", "2.5e-05", "4e-07", "1e-13", "0.625", "1",
    ]  # fmt: skip
    assert lines[2] == "BF16, guarded, step 12: too far apart"
    assert lines[3].endswith("0.50 s beside 12.5 s of optimizer steps")


def test_every_sample_and_evaluation_is_a_row(course: Course, tmp_path: Path) -> None:
    write_samples(tmp_path / "new" / "provoke.csv", [course])
    with (tmp_path / "new" / "provoke.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["round"], row["rollout"], row["k3"]) for row in rows[:2]] == [
        ("5", "bf16", "2.5e-05"),
        ("10", "fp16", "4e-07"),
    ]
    assert [row["reward"] for row in rows[2:]] == ["0.1", "0.625"]


@pytest.mark.process
def test_the_picture_is_written(course: Course, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="not installed: the extra 'bench' has it")
    draw(tmp_path / "provoke.png", [course])
    assert (tmp_path / "provoke.png").stat().st_size > 1000
