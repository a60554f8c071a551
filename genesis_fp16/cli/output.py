"""Output of commands: tables for people, JSON for programs, nothing else on stdout."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated

import typer

from infrastructure.events.plain_text import plain
from infrastructure.files import json_text

LONGEST_CELL = 300

JSON_OPTION = typer.Option("--json", help="Answer in JSON, on stdout alone.")
JsonFlag = Annotated[bool, JSON_OPTION]


def print_json(value: object) -> None:
    """Print *value* as JSON."""
    typer.echo(json_text(value, indent=2, default=str))


def print_line(text: str) -> None:
    """Print *text* on one line, without control characters."""
    typer.echo(" ".join(plain(text).split("\n")))


def print_warning(text: str) -> None:
    """Print *text* as one line on stderr."""
    typer.echo(f"warning: {' '.join(plain(text).split())}", err=True)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, longest: int = LONGEST_CELL
) -> None:
    """Print *rows* under *columns*; long cells wrap on a terminal only.

    Control characters are left out, and what exceeds *longest* characters of a cell.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        shown = ("" if cell is None else plain(str(cell), longest) for cell in row)
        table.add_row(*(Text(cell) for cell in shown))
    console = Console()
    if not console.is_terminal:
        console.width = 10_000
    with console.capture() as capture:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in capture.get().splitlines()))
