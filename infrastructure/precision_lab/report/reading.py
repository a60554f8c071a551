"""What a folder of results holds, as far as it can be read. Imports no torch.

A damaged file costs only what it describes: it is named in `LabResults.problems`, and the rest is
read. Nothing is executed or unpickled.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from infrastructure.events.role_precision import PRESETS
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.results import (
    MOST_BYTES,
    CellSummary,
    ResultsError,
    cell_folders,
    read_manifest,
    read_number,
    read_object,
    require_own,
)

BASELINE = "fp32_baseline"
COMPARISON_ROWS, COMPARISON_SUMMARY = "probe_results.csv", "summary.json"
_END_SHARE = 0.2  # of the updates of a cell
_VERDICTS = ("hypothesis", "claim", "figure", "interval", "rule", "verdict", "would decide")


class ReportError(LabError):
    """A report cannot be made; the message has the reason and the remedy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """What a cell of a sweep has written.

    Attributes:
        preset: Name of the preset.
        seed: Seed of the cell.
        summary: How it ended; None if it has not.
        steps: Metrics of each update; not finite values are floats too.
    """

    preset: str
    seed: int
    summary: CellSummary | None
    steps: list[dict[str, float | None]]

    def series(self, name: str) -> list[tuple[float, float]]:
        """Update, from 0, and value of the metric *name*, where it has one."""
        return [
            (float(number) if (at := step.get("step")) is None else at, value)
            for number, step in enumerate(self.steps)
            if (value := step.get(name)) is not None
        ]

    def values(self, name: str) -> list[float]:
        """Finite values of the metric *name*."""
        return [value for _, value in self.series(name) if math.isfinite(value)]

    def at_end(self, name: str) -> float | None:
        """Median of the metric *name* over the last fifth of the updates; None if it has none."""
        values = self.values(name)
        return median(values[-max(1, round(len(values) * _END_SHARE)) :]) if values else None


Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabResults:
    """Everything that a results folder contains.

    Attributes:
        folder: What was read.
        manifest: Content of ``experiment_manifest.json``; empty if there is none.
        cells: Cells of a sweep, in the order of the presets.
        comparison_rows: Rows of the static comparison by position.
        comparison: Summary of the static comparison; empty if there is none.
        replays: Results of `lab replay` by preset.
        bisect: Result of `lab bisect`; empty if there is none.
        hypotheses: Rows of verdicts about the hypotheses, by the model they were tested with.
        problems: Files that cannot be read, one sentence each.
    """

    folder: Path
    manifest: Row = field(default_factory=dict)
    cells: list[CellResult] = field(default_factory=list)
    comparison_rows: list[Row] = field(default_factory=list)
    comparison: Row = field(default_factory=dict)
    replays: Mapping[str, Row] = field(default_factory=dict)
    bisect: Row = field(default_factory=dict)
    hypotheses: Mapping[str, list[Row]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def presets(self) -> list[str]:
        """Presets of the cells, in the order of the library, then by name."""
        return sorted({cell.preset for cell in self.cells}, key=preset_order)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the cells."""
        return sorted({cell.seed for cell in self.cells})

    @property
    def culprits(self) -> list[Row] | None:
        """Places that the bisection names, the costliest first; None without a bisection."""
        culprits = self.bisect.get("culprits")
        return _objects(culprits) if isinstance(culprits, list) else None

    @property
    def comparison_by_length(self) -> list[Row]:
        """Rows of the static comparison's summary, the shortest sequences first."""
        return _objects(self.comparison.get("by_length"))


def preset_order(name: str) -> tuple[int, str]:
    """Key that sorts presets: FP32 first, then as the library lists them, then others by name."""
    known = [BASELINE, *PRESETS]
    return (known.index(name) if name in known else len(known), name)


def inner(row: Row, *names: str) -> object:
    """The value below *names*; None where an object is missing."""
    value: object = row
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def number(value: object) -> float | None:
    """A number of a result; None where it is something else."""
    try:
        return read_number(value)  # type: ignore[arg-type]  # checked there
    except (TypeError, ValueError, OverflowError):
        return None


def texts(row: Row, name: str) -> list[str]:
    """The list *name* as texts; empty where it is something else."""
    value = row.get(name)
    return [str(item) for item in value] if isinstance(value, list) else []


def _objects(value: object) -> list[Row]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def read_results(folder: Path) -> LabResults:
    """Read everything in the folder of an experiment.

    Raises:
        ReportError: The folder does not exist, or holds no result that can be read.
    """
    if not folder.is_dir():
        raise ReportError(
            f"{folder} is not a folder: name the output folder of lab compare, replay, bisect or "
            "sweep"
        )
    reader = _Reader(folder)
    results = LabResults(
        folder=folder,
        manifest=reader.manifest(),
        cells=sorted(reader.cells(), key=lambda cell: (preset_order(cell.preset), cell.seed)),
        comparison_rows=reader.rows(folder / "probe" / COMPARISON_ROWS),
        comparison=reader.optional(folder / "probe" / COMPARISON_SUMMARY),
        replays=dict(reader.replays()),
        bisect=reader.optional(folder / "bisect.json"),
        hypotheses={
            path.parent.name: rows
            for path in sorted(folder.glob("hypotheses/*/verdicts.csv"))
            if (rows := reader.rows(path, _VERDICTS))
        },
        problems=reader.problems,
    )
    if not (
        results.cells
        or results.comparison
        or results.replays
        or results.bisect
        or results.hypotheses
    ):
        detail = f": {'; '.join(results.problems)}" if results.problems else ""
        raise ReportError(
            f"{folder} holds no result that can be read{detail}. Results are the folders runs, "
            "probe, replay and hypotheses, and bisect.json: see genesis-fp16 lab --help"
        )
    return results


class _Reader:
    """Reads files and remembers which ones it could not read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []

    def manifest(self) -> Row:
        try:
            return read_manifest(self.folder) or {}
        except ResultsError as error:
            self.problems.append(str(error))
            return {}

    def cells(self) -> Iterator[CellResult]:
        for preset, seed, run in cell_folders(self.folder):
            try:
                summary = run.summary()
                if summary is not None:
                    require_own(summary, preset, seed, run.path)
            except ResultsError as error:
                self.problems.append(str(error))
                summary = None
            try:
                steps = [
                    _numbers(step, run.path / "step_metrics.jsonl", line)
                    for line, step in enumerate(run.steps(), start=1)
                ]
            except ResultsError as error:
                self.problems.append(str(error))
                steps = []
            yield CellResult(preset=preset, seed=seed, summary=summary, steps=steps)

    def optional(self, path: Path) -> Row:
        """The object in *path*; empty if there is no such file, or it cannot be read."""
        if not path.exists():
            return {}
        try:
            _check_size(path)
            return read_object(path)
        except ResultsError as error:
            self.problems.append(str(error))
            return {}

    def replays(self) -> Iterator[tuple[str, Row]]:
        for path in sorted(self.folder.glob("replay/*.json"), key=lambda p: preset_order(p.stem)):
            replay = self.optional(path)
            if replay:
                yield path.stem, replay

    def rows(self, path: Path, texts: Collection[str] = ("dtype",)) -> list[Row]:
        """Rows of a CSV file; what is not in *texts* is a number, or None where it is empty."""
        if not path.exists():
            return []
        try:
            _check_size(path)
            with path.open(newline="", encoding="utf-8") as file:
                return [
                    _parsed(row, texts, path, line)
                    for line, row in enumerate(csv.DictReader(file), 2)
                ]
        except ResultsError as error:
            self.problems.append(str(error))
        except (OSError, ValueError, csv.Error) as error:
            self.problems.append(f"{path}: cannot be read as CSV ({error}): delete it")
        return []


def _check_size(path: Path) -> None:
    if not path.is_file():
        raise ResultsError(path, "is not a regular file: delete it")
    if path.stat().st_size > MOST_BYTES:
        raise ResultsError(path, f"is larger than {MOST_BYTES >> 20} MiB: not a result of the lab")


def _numbers(step: Mapping[str, Any], path: Path, line: int) -> dict[str, float | None]:
    try:
        return {name: read_number(value) for name, value in step.items()}
    except (TypeError, ValueError, OverflowError) as error:
        raise ResultsError(path, f"line {line}: {error}: delete the cell") from None


def _parsed(row: Mapping[str, str | None], texts: Collection[str], path: Path, line: int) -> Row:
    parsed: dict[str, Any] = {}
    for name, text in row.items():
        if name is None or text is None:
            raise ResultsError(path, f"line {line} has another number of columns than the head")
        if name in texts:
            parsed[name] = text
            continue
        try:
            parsed[name] = float(text) if text else None
        except ValueError:
            raise ResultsError(path, f"line {line}: {name} is not a number: {text!r}") from None
    return parsed
