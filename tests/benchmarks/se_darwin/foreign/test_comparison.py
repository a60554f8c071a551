from pathlib import Path

import pytest

from benchmarks.se_darwin.foreign.__main__ import main
from benchmarks.se_darwin.foreign.attempt import AttemptRecord, Conditions, RankerName
from benchmarks.se_darwin.foreign.comparison import compare
from benchmarks.se_darwin.foreign.handwritten_bugs import handwritten_bugs


def _record(
    ranker: RankerName,
    name: str,
    *,
    executions: int,
    repaired: bool,
    right: bool = False,
    seed: int = 0,
) -> AttemptRecord:
    return AttemptRecord(
        source="students",
        name=name,
        digest=name,
        conditions=Conditions(ranker=ranker, max_evaluations=100, seed=seed),
        executions=executions,
        repaired=repaired,
        right=right,
    )


def test_a_bug_without_a_repair_counts_the_full_budget() -> None:
    records = [
        _record("suspicion", "a", executions=40, repaired=True, right=True),
        _record("suspicion", "b", executions=7, repaired=False),
        _record("model", "a", executions=10, repaired=True, right=True),
        _record("model", "b", executions=60, repaired=True),
    ]

    report = compare(records)

    assert "| suspicion | shipped model | 2 | 140 ÷ 70 | 2 [" in report
    assert "| 2 / 0 / 0 |" in report
    assert "| students | shipped model | 2 | 2 (100 %) | 1 (50 %) | 1 (50 %) | 0 | 0 |" in report


def test_the_most_that_a_ranker_could_save_counts_one_execution_for_a_repair() -> None:
    records = [
        _record("suspicion", "found by both", executions=40, repaired=True),
        _record("suspicion", "found by none", executions=100, repaired=False),
        _record("suspicion", "found by suspicion", executions=60, repaired=True),
        _record("model", "found by both", executions=10, repaired=True),
        _record("model", "found by none", executions=100, repaired=False),
        _record("model", "found by suspicion", executions=100, repaired=False),
    ]

    # 40 + 100 + 60 executions against 1 + 100 + 1.
    assert "] | 1.96 | 2 | " in compare(records)


def test_what_answers_change_has_its_own_table() -> None:
    wrong, right = (
        _record("model", "a", executions=40, repaired=True, right=right) for right in (False, True)
    )
    other = _record("model", "b", executions=50, repaired=True)
    assert "answer" not in compare([wrong, other])

    records = [wrong.model_copy(update={"answered": right}), other]
    assert "| shipped model | 1 | 0 | 1 | 2 (100 %) | 1 (50 %) | 1 (50 %) |" in compare(records)
    assert "| shipped model | 2 | 2 (100 %) | 0 (0 %) | 0 (0 %) | 0 | 0 |" in compare(records)
    assert "answer" not in compare(records, within=30)

    late = records[0].model_copy(update={"answered": right.model_copy(update={"executions": 60})})
    assert "| 1 | 0 | 0 | 1 (50 %) | 0 (0 %) | 0 (0 %) |" in compare([late, other], 50)


def test_attempts_with_several_seeds_are_compared_by_their_means() -> None:
    records = [
        _record("suspicion", "a", executions=40, repaired=True),
        _record("suspicion", "a", executions=20, repaired=True, seed=1),
        _record("suspicion", "b", executions=100, repaired=False),
        _record("suspicion", "b", executions=100, repaired=False, seed=1),
        _record("model", "a", executions=10, repaired=True),
        _record("model", "b", executions=100, repaired=False),
    ]

    report = compare(records)

    assert "| students | suspicion (2 seeds) | shipped model (1 seed) | 2 | 1.18 [" in report
    assert "] | 1 | 3 [3, 3] |" in report


def test_a_larger_budget_can_be_cut() -> None:
    records = [
        _record("suspicion", "a", executions=40, repaired=True, right=True),
        _record("model", "a", executions=10, repaired=True, right=True),
    ]

    report = compare(records, within=20)

    assert "Budget of a bug: 60 s and 20 executions." in report
    assert "| suspicion | shipped model | 1 | 20 ÷ 10 | 2 [" in report
    assert "| students | suspicion | 1 | 0 (0 %) | 0 (0 %) |" in report
    with pytest.raises(ValueError, match="100 executions, not 1000"):
        compare(records, within=1000)


def test_an_attempt_that_could_not_be_made_is_listed() -> None:
    failed = _record("random", "a", executions=0, repaired=False)
    failed.error = "no test\ncalls f"

    report = compare([failed])

    assert "| students | random | 1 | 0 (0 %) | 0 (0 %) | 0 | 1 | 0 |" in report
    assert "- students/a (random): no test calls f" in report


def test_the_same_file_twice_is_refused() -> None:
    record = _record("random", "a", executions=1, repaired=True)

    with pytest.raises(ValueError, match="students/a by random"):
        compare([record, record])


def test_different_budgets_are_not_compared() -> None:
    record = _record("random", "a", executions=1, repaired=True)
    other = record.model_copy(update={"conditions": Conditions(ranker="model", model=Path("m"))})

    with pytest.raises(ValueError, match="different budgets"):
        compare([record, other])


def test_no_attempts_are_refused() -> None:
    with pytest.raises(ValueError, match="no attempts"):
        compare([])


def test_repairs_are_counted_by_what_evolve_says_of_them() -> None:
    records = [
        _record("model", name, executions=1, repaired=True, right=right).model_copy(
            update={"certainty": {"level": level, "question": question}}
        )
        for name, right, level, question in (
            ("a", True, "well supported", ""),
            ("b", False, "well supported", ""),
            ("c", False, "weakly supported", "f(1)?"),
        )
    ]
    report = compare(records)
    assert "| shipped model | well supported | 2 | 1 (50 %) | 0 of 1 |" in report
    assert "| shipped model | weakly supported | 1 | 0 (0 %) | 1 of 1 |" in report


def test_the_bugs_to_develop_on_can_be_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bugs = handwritten_bugs()
    lines = [
        _record("model", bug.name, executions=1, repaired=True).model_copy(
            update={"source": "handwritten", "digest": bug.digest}
        )
        for bug in bugs
    ]
    file = tmp_path / "attempts.jsonl"
    file.write_text("".join(f"{each.model_dump_json()}\n" for each in lines))
    assert main(["report", str(file), "--without-sample", "5"]) == 0
    assert f"| handwritten | shipped model | {len(bugs) - 5} |" in capsys.readouterr().out
