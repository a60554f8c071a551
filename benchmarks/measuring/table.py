"""Tables as aligned text and as CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path


def format_table(rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> str:
    """Return *rows* as text in aligned columns, without empty columns."""
    used = [name for name in columns if any(row[name] for row in rows)]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in used}
    head = "  ".join(name.ljust(widths[name]) for name in used)
    body = ("  ".join(row[name].ljust(widths[name]) for name in used) for row in rows)
    return "\n".join(line.rstrip() for line in (head, *body))


def write_csv(path: Path, rows: Sequence[Mapping[str, str]], columns: Sequence[str]) -> None:
    """Write *rows* to *path*; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
