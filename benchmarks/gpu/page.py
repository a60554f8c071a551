"""The results as one page of Markdown."""

from __future__ import annotations

import os.path
from pathlib import Path

from benchmarks.gpu.claims import ROOT, Claim
from benchmarks.gpu.findings import Finding
from benchmarks.gpu.results import Results, place

_OUTCOMES = ("refuted", "proven", "not measurable")


def write_page(results: Results, path: Path) -> None:
    """Write *results* to *path*; links to documents lead there from its folder."""
    path.write_text("\n".join(_lines(results, path.parent)) + "\n")


def _lines(results: Results, folder: Path) -> list[str]:
    counts = results.counts()
    title = "A rehearsal on a CPU" if results.rehearsal else results.machine["device"]
    lines = [f"# What this project says about CUDA: {title}", ""]
    if results.rehearsal:
        lines += [
            "**This proves nothing about CUDA**: it tried the sections, with little work.",
            "",
        ]
    lines += [f"- {name}: {value}" for name, value in results.machine.items()]
    lines += [f"- seconds: {results.seconds:.0f}", ""]
    lines += [", ".join(f"{counts[each]} {each}" for each in _OUTCOMES) + ".", ""]
    lines += ["| claim | outcome | measured, or why not | tested |", "|---|---|---|---|"]
    rows = sorted(results.findings(), key=lambda row: _OUTCOMES.index(row[1].outcome))
    lines += [_row(claim, finding, folder) for claim, finding in rows]
    lines += ["", "## Sections", "", "| section | seconds | end |", "|---|---|---|"]
    lines += [
        f"| {end.section.name} | {end.seconds:.0f} | {end.problem or 'normal'} |"
        for end in results.ends
    ]
    for end in results.ends:
        blocks = [*end.tables, *([end.log] if end.problem and end.log else [])]
        if blocks:
            lines += ["", f"### {end.section.name}"]
        for text in blocks:
            lines += ["", "```", text.replace("```", "'''"), "```"]
    return lines


def _row(claim: Claim, finding: Finding, folder: Path) -> str:
    document = os.path.relpath(ROOT / claim.document, folder)
    said = f"{_cell(claim.quote)} ([{place(claim)}]({document}))"
    cells = (said, f"**{finding.outcome}**", finding.measured or finding.reason, claim.test)
    return f"| {cells[0]} | {cells[1]} | {_cell(cells[2])} | {_cell(cells[3])} |"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
