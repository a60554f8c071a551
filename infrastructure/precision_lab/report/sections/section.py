"""What a section is made of: figures, tables and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SWEEP = "genesis-fp16 lab sweep"


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A drawing of a report.

    Attributes:
        name: Name of its file, without suffix.
        svg: The drawing.
    """

    name: str
    svg: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table of a report.

    Attributes:
        head: Names of the columns, with units.
        rows: Cells as text.
        tones: Class of each cell, such as ``good`` or ``bad``; empty for none.
        title: Line above it; empty for none.
        wraps: Whether long cells take several lines.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    tones: Sequence[Sequence[str]] = ()
    title: str = ""
    wraps: bool = False

    def tone(self, row: int, column: int) -> str:
        """Class of a cell."""
        if self.tones:
            return self.tones[row][column]
        return "wrap" if self.wraps else ""


@dataclass(kw_only=True, slots=True)
class Section:
    """A section of a report.

    Attributes:
        anchor: Name of its link.
        title: Heading.
        says: What it shows and what good looks like.
        figures: Drawings.
        tables: Tables below them.
        notes: Further sentences.
        absent: Why there is nothing to show, and the command that makes it; empty otherwise.
    """

    anchor: str
    title: str
    says: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    absent: str = ""

    def needs(self, what: str, command: str) -> Section:
        """Return the section; an empty one names *what* is absent and the *command* for it."""
        if not (self.figures or self.tables):
            self.absent = f"This folder has no result of {what}: {command} makes it."
        return self


def shown(value: float | str | None) -> str:
    """A figure as a table shows it."""
    if value is None:
        return "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
