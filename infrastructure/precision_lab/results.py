"""Results of the lab on disk, as JSON that any strict parser reads. Imports no torch.

A folder of results holds ``experiment_manifest.json`` and, for each cell,
``runs/<preset>_seed<n>/`` with ``config.json``, ``step_metrics.jsonl`` (one line an optimizer
step) and ``run_summary.json``. The summary is written last, so a cell without one has not ended.
Numbers that are not finite are the strings ``nan``, ``inf`` and ``-inf``; `read_number` reads them.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any

from infrastructure.files import JsonFileError, json_text, open_regular, read_json, write_json
from infrastructure.precision_lab.errors import LabError

FORMAT = 1
MANIFEST = "experiment_manifest.json"
CONFIG, STEPS, SUMMARY = "config.json", "step_metrics.jsonl", "run_summary.json"
COMPLETED, INTERRUPTED = "completed", "interrupted"
MOST_BYTES = 256 * 2**20  # of one file

_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_CELL = re.compile(r"(?P<preset>.+)_seed(?P<seed>\d+)")


class ResultsError(LabError):
    """Results that cannot be read or continued.

    Args:
        path: File or folder.
        problem: What is wrong with it, and the remedy.
    """

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path


def read_number(value: float | str | None) -> float | None:
    """A number of a result, which may be NaN or infinite; None where there was none.

    Raises:
        ValueError: *value* is another text.
    """
    if isinstance(value, str):
        if value not in _NOT_FINITE:
            raise ValueError(f"expected a number, or nan, inf or -inf, got {value!r}")
        return _NOT_FINITE[value]
    return None if value is None else float(value)


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in the file *path*.

    Raises:
        ResultsError: The file cannot be read, or does not hold a JSON object.
    """
    try:
        content = read_json(path, limit=MOST_BYTES, allow_nan=True)
    except OSError as error:
        raise ResultsError(path, f"cannot be read: {error.strerror}") from error
    except JsonFileError as error:
        raise ResultsError(path, f"{error.problem}: restore it, or delete it") from error
    if not isinstance(content, dict):
        raise ResultsError(path, "is not a JSON object: restore it, or delete it")
    return content


@dataclass(frozen=True, kw_only=True, slots=True)
class CellSummary:
    """How a cell ended; the content of ``run_summary.json``.

    Attributes:
        preset: Name of the preset.
        seed: Seed of the cell.
        category: ``completed``, ``interrupted``, or the category of the failure.
        reason: Sentence that explains a failure; empty for a completed cell.
        updates: Optimizer updates attempted.
        planned_updates: Optimizer updates that the cell was to make.
        seconds: Wall-clock time.
        cpu_seconds: CPU time of the process.
        initial_weights: SHA-256 of the FP32 weights that the cell began with.
        precision: Types of each role as declared, ``store/compute/out``.
        effective_precision: Types of each role as seen in the tensors of the first round.
        environment: Device, versions, threads, attention kernel, determinism.
        metrics: Last value of each metric of ``step_metrics.jsonl`` that has one.
        totals: Sums over the cell, such as skipped updates.
    """

    preset: str
    seed: int
    category: str
    reason: str = ""
    updates: int
    planned_updates: int
    seconds: float
    cpu_seconds: float
    initial_weights: str = ""
    precision: Mapping[str, str] = field(default_factory=dict)
    effective_precision: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_failure(self) -> bool:
        """Whether the cell ended by itself and did not complete."""
        return self.category not in (COMPLETED, INTERRUPTED)


class CellFolder:
    """The folder of one cell.

    Args:
        path: ``<output>/runs/<preset>_seed<n>``; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def of(cls, output: Path, preset: str, seed: int) -> CellFolder:
        """The folder of a cell in the folder of an experiment."""
        return cls(output / "runs" / f"{preset}_seed{seed}")

    def begin(self, config: Mapping[str, Any]) -> None:
        """Write ``config.json``; remove what an earlier attempt has left.

        Raises:
            OSError: The disk refuses.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / SUMMARY).unlink(missing_ok=True)
        (self.path / STEPS).write_bytes(b"")
        write_json(self.path / CONFIG, config)

    def append(self, metrics: Mapping[str, object]) -> None:
        """Add the line of one step, whole or with an error.

        Raises:
            OSError: The disk refuses, also after a part of the line.
        """
        with (self.path / STEPS).open("ab") as file:  # unbuffered, a full disk cuts it silently
            file.write(f"{json_text(metrics)}\n".encode())

    def finish(self, summary: CellSummary) -> None:
        """Write ``run_summary.json``, after the steps are on the disk.

        Raises:
            OSError: The disk refuses; the cell has not ended.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        with (self.path / STEPS).open("ab") as file:
            os.fsync(file.fileno())
        write_json(self.path / SUMMARY, {"format": FORMAT, **asdict(summary)})

    def summary(self) -> CellSummary | None:
        """How the cell ended; None if it has not.

        Raises:
            ResultsError: The summary cannot be read, or is of a newer version.
        """
        path = self.path / SUMMARY
        if not path.exists():
            return None
        content = read_object(path)
        version = content.pop("format", None)
        if version != FORMAT:
            raise ResultsError(
                path, f"has the format {version!r}, this version reads {FORMAT}: use a newer one"
            )
        names = {attribute.name for attribute in fields(CellSummary)}
        try:
            for name in ("metrics", "totals"):
                values = content.get(name, {})
                content[name] = {metric: read_number(value) for metric, value in values.items()}
            summary = CellSummary(
                **{name: value for name, value in content.items() if name in names}
            )
            _check_types(summary)
            return summary
        except (TypeError, ValueError, AttributeError) as error:
            raise ResultsError(path, f"is not the summary of a cell ({error}): delete it") from None

    def steps(self) -> list[dict[str, Any]]:
        """Lines of ``step_metrics.jsonl``; one that a killed process has torn is left out.

        Raises:
            ResultsError: The file cannot be read, or a line of it is not a JSON object.
        """
        path = self.path / STEPS
        try:
            with open_regular(path) as file:
                content = file.read()
        except OSError as error:
            raise ResultsError(path, f"cannot be read: {error.strerror}") from error
        lines = content.split(b"\n")[:-1]  # what follows the last newline was torn
        steps = []
        for number, line in enumerate(lines, start=1):
            try:
                step = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ResultsError(path, f"line {number} is not JSON ({error})") from None
            if not isinstance(step, dict):
                raise ResultsError(path, f"line {number} is not a JSON object")
            steps.append(step)
        return steps


def require_own(summary: CellSummary, preset: str, seed: int, folder: Path) -> None:
    """Check that *summary*, of the cell in *folder*, is not that of another cell.

    Raises:
        ResultsError: It is; the folder was copied.
    """
    if (summary.preset, summary.seed) != (preset, seed):
        raise ResultsError(
            folder / SUMMARY,
            f"is the summary of {summary.preset} seed {summary.seed}: restore it, or delete the "
            "folder, and the cell runs again",
        )


def _check_types(summary: CellSummary) -> None:
    """Check the values that programs compute with; a person may have edited the file.

    Raises:
        TypeError: One has another type.
    """
    types: dict[str, type | UnionType] = {
        **dict.fromkeys(("preset", "category", "reason", "initial_weights"), str),
        **dict.fromkeys(("seed", "updates", "planned_updates"), int),
        **dict.fromkeys(("seconds", "cpu_seconds"), int | float),
        **dict.fromkeys(("precision", "effective_precision", "environment"), Mapping),
    }
    for name, expected in types.items():
        value = getattr(summary, name)
        if not isinstance(value, expected) or isinstance(value, bool):
            raise TypeError(f"{name} is a {type(value).__name__}")


def write_manifest(output: Path, manifest: Mapping[str, Any]) -> None:
    """Replace ``experiment_manifest.json``.

    Raises:
        OSError: The disk refuses.
    """
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / MANIFEST, {"format": FORMAT, **manifest})


def read_manifest(output: Path) -> dict[str, Any] | None:
    """Content of ``experiment_manifest.json`` without its format; None if there is none.

    Raises:
        ResultsError: It cannot be read, or is of a newer version.
    """
    path = output / MANIFEST
    if not path.exists():
        return None
    content = read_object(path)
    version = content.pop("format", None)
    if version != FORMAT:
        raise ResultsError(
            path, f"has the format {version!r}, this version reads {FORMAT}: use a newer one"
        )
    return content


def cell_folders(output: Path) -> Iterator[tuple[str, int, CellFolder]]:
    """Preset, seed and folder of each cell in the folder of an experiment, sorted."""
    folders = []
    for path in (output / "runs").glob("*_seed*"):
        match = _CELL.fullmatch(path.name)
        if match and path.is_dir():
            folders.append((match["preset"], int(match["seed"]), CellFolder(path)))
    yield from sorted(folders, key=lambda cell: cell[:2])
