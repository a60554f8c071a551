"""Findings: what a section says about a claim, as lines of a file that survives the section."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

Verdict = Literal["proven", "refuted", "not measurable"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What was found about a claim.

    Attributes:
        claim: Name of the claim.
        outcome: What became of it.
        measured: What was measured, in words; empty if nothing was.
        reason: Reason that it could not be measured; empty if it was.
        figures: The figures behind it, by name; None for one that is not finite.
    """

    claim: str
    outcome: Verdict
    measured: str = ""
    reason: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)


class FindingsFile:
    """Writes a section's findings and tables, each at once.

    Args:
        path: File to append to.
        names: Claims that the section may decide.
    """

    def __init__(self, path: Path, names: frozenset[str]) -> None:
        self._path, self._left = path, set(names)

    def decide(self, claim: str, *, holds: bool, measured: str, **figures: float) -> None:
        """Record that *claim* holds or not.

        Raises:
            ValueError: *claim* is not the section's, or is decided already.
        """
        self._add(
            Finding(
                claim=claim,
                outcome="proven" if holds else "refuted",
                measured=measured,
                figures={name: _finite(value) for name, value in figures.items()},
            )
        )

    def cannot(self, claim: str, reason: str) -> None:
        """Record why *claim* cannot be measured here.

        Raises:
            ValueError: *claim* is not the section's, or is decided already.
        """
        self._add(Finding(claim=claim, outcome="not measurable", reason=reason))

    def show(self, table: str) -> None:
        """Record text for the section's part of the page."""
        self._write({"table": table})

    def _add(self, finding: Finding) -> None:
        if finding.claim not in self._left:
            raise ValueError(f"{finding.claim} is decided already, or by another section")
        self._left.remove(finding.claim)
        self._write({"finding": asdict(finding)})

    def _write(self, entry: Mapping[str, object]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(entry, allow_nan=False) + "\n")


def read_findings(path: Path) -> tuple[list[Finding], list[str]]:
    """Findings and tables of a section; a last line that was cut off is left out."""
    findings, tables = [], []
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    for line in lines:
        if not line.endswith("\n"):
            break
        entry = json.loads(line)
        if "finding" in entry:
            findings.append(Finding(**entry["finding"]))
        else:
            tables.append(str(entry["table"]))
    return findings, tables


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
