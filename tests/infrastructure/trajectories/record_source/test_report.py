from __future__ import annotations

from infrastructure.trajectories.record_source.report import SourceReport


def test_of_many_problems_the_most_frequent_are_told() -> None:
    report = SourceReport()
    for reason in range(10):
        for line in range(10 - reason):
            report.refuse(f"reason {reason}", f"a.jsonl line {line}")
    report.misfits["x is missing"] += 1
    report.first["x is missing"] = "b.jsonl line 7"
    report.unreadable["c.jsonl"] = "it is damaged"
    first, *_, more, misfit, unreadable = report.problems()
    assert first.startswith("10 records cannot be read: reason 0 (first: a.jsonl line 0)")
    assert more == "records cannot be read for 2 more reasons"
    assert misfit.startswith("1 transition ")
    assert "x is missing (first: b.jsonl line 7)" in misfit
    assert unreadable.startswith("c.jsonl cannot be read: it is damaged")
    assert report.counts()["refused"] == 55


def test_records_of_others_are_a_problem_only_if_none_is_the_agent_s() -> None:
    report = SourceReport()
    report.others["seo"] = 2
    assert "2 records name other agents (seo)" in next(report.problems())
    report.duplicates = 1
    assert not list(report.problems())
