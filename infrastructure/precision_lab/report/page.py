"""Writes the report: ``report.html`` is complete by itself, ``report.md`` has figures beside it.

The page holds no script, and loads nothing: it opens from a disk, in a mail, without a network.
Every text of a result is escaped.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from infrastructure.files import write_atomically
from infrastructure.precision_lab.report.reading import LabResults, ReportError, read_results
from infrastructure.precision_lab.report.sections import Section, Table, all_sections
from infrastructure.precision_lab.report.verdict import verdict

HTML, MARKDOWN, PLOTS = "report.html", "report.md", "plots"
_TEMPLATE = Path(__file__).with_name("page.html.j2")
_MARKDOWN = str.maketrans({character: f"\\{character}" for character in "\\`*_{}[]<>#|!&~$"})


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenReport:
    """The files of a report, and what was found.

    Attributes:
        html: The page.
        markdown: The same as Markdown.
        verdict: Its first sentences.
        problems: Files that could not be read.
    """

    html: Path
    markdown: Path
    verdict: list[str]
    problems: list[str]


def write_report(results_folder: Path, output: Path) -> WrittenReport:
    """Read *results_folder*; write the page, the Markdown and its figures into *output*.

    Raises:
        ReportError: There is nothing to report, or the packages of the extra ``lab`` are missing.
        OSError: The disk refuses.
    """
    results = read_results(results_folder)
    try:
        sections = all_sections(results)
        html = _html(results, sections)
    except ModuleNotFoundError as error:
        raise ReportError(
            f"the report needs {error.name}: install it with pip install 'genesis-fp16[lab]'"
        ) from error
    (output / PLOTS).mkdir(parents=True, exist_ok=True)
    for section in sections:
        for figure in section.figures:
            write_atomically(output / PLOTS / f"{figure.name}.svg", figure.svg)
    write_atomically(output / MARKDOWN, _markdown(results, sections))
    write_atomically(output / HTML, html)
    return WrittenReport(
        html=output / HTML,
        markdown=output / MARKDOWN,
        verdict=verdict(results),
        problems=results.problems,
    )


def _html(results: LabResults, sections: list[Section]) -> str:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    template = environment.from_string(_TEMPLATE.read_text("utf-8"))
    return template.render(
        sections=sections,
        verdict=verdict(results),
        problems=results.problems,
        origin=origin(results),
    )


def origin(results: LabResults) -> list[tuple[str, str]]:
    """Where the results come from: names and values, for the end of the report."""
    environments = [
        cell.summary.environment for cell in results.cells if cell.summary is not None
    ] + [
        result.get("environment")
        for result in (results.comparison, results.bisect, *results.replays.values())
    ]
    facts = {"folder": results.folder.name}
    for environment in environments:
        for name, value in environment.items() if isinstance(environment, dict) else ():
            shown = (
                ", ".join(f"{k} {v}" for k, v in value.items())
                if isinstance(value, dict)
                else value
            )
            values = facts.get(str(name), "").split("; ")
            if str(shown) not in values:
                facts[str(name)] = "; ".join([known for known in values if known] + [str(shown)])
    if results.cells:
        facts["presets"] = ", ".join(results.presets)
        facts["seeds"] = ", ".join(map(str, results.seeds))
        facts["initial weights (SHA-256)"] = ", ".join(
            sorted({c.summary.initial_weights[:12] for c in results.cells if c.summary is not None})
        )
    if "weights_sha256" in results.comparison:
        facts["weights of the static comparison (SHA-256)"] = str(
            results.comparison["weights_sha256"]
        )[:12]
    return [(name, value[:400]) for name, value in facts.items()]


def _markdown(results: LabResults, sections: list[Section]) -> str:
    lines = ["# Precision report", ""]
    lines += [f"- {_plain(sentence)}" for sentence in verdict(results)]
    if results.problems:
        lines += ["", "## Files that could not be read", ""]
        lines += [f"- {_plain(problem)}" for problem in results.problems]
    for section in sections:
        lines += ["", f"## {_plain(section.title)}", "", _plain(section.says)]
        if section.absent:
            lines += ["", f"*{_plain(section.absent)}*"]
        for figure in section.figures:
            lines += ["", f"![{figure.name}]({PLOTS}/{figure.name}.svg)"]
        for table in section.tables:
            lines += ["", _plain(table.title)] if table.title else []
            lines += ["", *_markdown_table(table)]
        for note in section.notes:
            lines += ["", _plain(note)]
    lines += ["", "## What this was made from", ""]
    lines += [f"- {_plain(name)}: {_plain(value)}" for name, value in origin(results)]
    return "\n".join(lines) + "\n"


def _markdown_table(table: Table) -> list[str]:
    rows = [table.head, ["---"] * len(table.head), *table.rows]
    return ["| " + " | ".join(c if c == "---" else _plain(c) for c in row) + " |" for row in rows]


def _plain(text: str) -> str:
    """*text* on one line, without a character that Markdown or HTML interprets."""
    return " ".join(text.split()).translate(_MARKDOWN)
