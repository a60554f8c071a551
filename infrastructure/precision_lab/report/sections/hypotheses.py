"""The hypotheses of document 004 and their verdicts."""

from __future__ import annotations

from infrastructure.precision_lab.report.reading import LabResults
from infrastructure.precision_lab.report.sections.section import Section, Table

_COLUMNS = ("hypothesis", "claim", "interval", "rule", "verdict", "would decide")


def hypotheses(results: LabResults) -> Section:
    """A table for each model on which they were tested."""
    section = Section(
        anchor="hypotheses",
        title="The four hypotheses of document 004",
        says=(
            "Each claim, what was measured with its 95 % interval over the seeds, and the verdict. "
            "Good is a verdict; an undecided claim names what would decide it."
        ),
    )
    for model, rows in results.hypotheses.items():
        cells = [[str(row.get(name, "")) for name in _COLUMNS] for row in rows]
        section.tables.append(Table(title=model, head=_COLUMNS, rows=cells, wraps=True))
    command = "python -m benchmarks.precision_lab hypotheses --output RESULTS/hypotheses"
    return section.needs("the hypotheses", command)
