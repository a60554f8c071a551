"""``genesis-fp16 lab report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genesis_fp16.cli.lab.errors import plain_errors
from genesis_fp16.cli.lab.options import RESULTS
from genesis_fp16.cli.output import print_line, print_warning


def report(
    results: Annotated[Path, typer.Argument(help="Folder of the results.")] = RESULTS,
    output: Annotated[
        Path | None, typer.Option("--output", help="Folder of the report; that of the results.")
    ] = None,
) -> None:
    """Write report.html, which opens offline, and report.md with its figures."""
    with plain_errors():
        from infrastructure.precision_lab.report import write_report

        written = write_report(results, output or results)
    for problem in written.problems:
        print_warning(problem)
    for sentence in written.verdict:
        print_line(sentence)
    print_line(f"written to {written.html} and {written.markdown}")
