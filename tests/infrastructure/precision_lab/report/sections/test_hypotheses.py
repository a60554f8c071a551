"""The section of the hypotheses: a table for each model."""

from __future__ import annotations

from pathlib import Path

from infrastructure.precision_lab.report import read_results
from infrastructure.precision_lab.report.sections.hypotheses import hypotheses


def test_the_hypotheses_are_shown_for_each_model(tmp_path: Path) -> None:
    folder = tmp_path / "hypotheses" / "small"
    folder.mkdir(parents=True)
    head = "hypothesis,claim,figure,interval,rule,verdict,would decide\n"
    (folder / "verdicts.csv").write_text(head + 'H1,"a, b",f,0.1,above 0,refuted,\n')
    (table,) = hypotheses(read_results(tmp_path)).tables
    assert (table.title, table.tone(0, 0)) == ("small", "wrap")
    assert table.rows == [["H1", "a, b", "0.1", "above 0", "refuted", ""]]
