"""Progress of the lab's commands: plain lines on stderr, so that stdout has the result alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from infrastructure.events.plain_text import plain

if TYPE_CHECKING:
    from infrastructure.precision_lab.progress import ProgressLines


def print_progress(line: str) -> None:
    """Print *line* on stderr, without control characters: a plugin may have written it."""
    typer.echo(" ".join(plain(line).split()), err=True)


def progress_lines() -> ProgressLines:
    """What prints the progress of a long command, now and then."""
    from infrastructure.precision_lab.progress import ProgressLines

    return ProgressLines(print_progress)
