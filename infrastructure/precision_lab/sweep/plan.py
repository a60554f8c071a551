"""What a sweep consists of, and whether a folder belongs to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infrastructure.events.role_precision import find_preset
from infrastructure.precision_lab.errors import LabError
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.results import (
    COMPLETED,
    INTERRUPTED,
    MANIFEST,
    CellFolder,
    CellSummary,
    read_manifest,
    require_own,
    write_manifest,
)

KIND = "ppo-sweep"
MOST_SEEDS = 2**63  # as many as torch takes
_OF_THE_MACHINE = ("timeout_seconds",)  # changes no result


class ForeignFolderError(LabError):
    """The folder holds the results of another experiment.

    Args:
        output: The folder.
        difference: What differs.
    """

    def __init__(self, output: Path, difference: str) -> None:
        super().__init__(
            f"{output} belongs to another sweep: {difference}. Choose another folder, or repeat "
            "the command that it was made with"
        )


@dataclass(frozen=True, order=True, slots=True)
class Cell:
    """One training of a sweep."""

    seed: int
    preset: str

    def __str__(self) -> str:
        return f"{self.preset} seed {self.seed}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepPlan:
    """Presets and seeds, and what each cell trains.

    Raises:
        UnknownPresetError: No preset has this name.
        LabError: There is no preset or seed, one is named twice, or a seed is out of range.
    """

    presets: tuple[str, ...]
    seeds: tuple[int, ...]
    settings: CellSettings

    def __post_init__(self) -> None:
        _require_distinct("preset", self.presets)
        _require_distinct("seed", self.seeds)
        for name in self.presets:
            find_preset(name)
        for seed in self.seeds:
            if not 0 <= seed < MOST_SEEDS:
                raise LabError(f"a seed must be an integer from 0 to 2**63 - 1, got {seed}")

    @property
    def cells(self) -> list[Cell]:
        """All cells, one seed after the other: an unfinished sweep has whole rows of presets."""
        return [Cell(seed, preset) for seed in self.seeds for preset in self.presets]

    def weights_of(self, output: Path, seed: int) -> Path:
        """File of the initial weights of a seed's cells."""
        return output / "initial_weights" / f"seed{seed}.pt"

    def check_folder(self, output: Path) -> dict[str, Any]:
        """The manifest in *output*, empty if it has none and no runs.

        Raises:
            ForeignFolderError: The folder belongs to another experiment.
            ResultsError: The manifest cannot be read.
        """
        manifest = read_manifest(output)
        if manifest is None:
            if (output / "runs").exists():
                raise ForeignFolderError(output, f"it has runs but no {MANIFEST}")
            return {}
        if manifest.get("kind") != KIND:
            raise ForeignFolderError(output, f"its kind is {manifest.get('kind')!r}, not {KIND!r}")
        there, here = manifest.get("settings"), self._identity
        if not isinstance(there, Mapping):
            raise ForeignFolderError(output, "its manifest names no settings")
        for name, kind in (("presets", str), ("seeds", int)):
            if not _is_list_of(kind, manifest.get(name, [])):
                raise ForeignFolderError(output, f"its manifest has no list of {name}")
        for name in ("initial_weights", "environment"):
            if not isinstance(manifest.get(name, {}), Mapping):
                raise ForeignFolderError(output, f"its manifest has no object {name}")
        differing = [
            f"{name} is {there.get(name)!r} there and {here.get(name)!r} here"
            for name in sorted(here.keys() | there.keys())
            if there.get(name) != here.get(name)
        ]
        if differing:
            raise ForeignFolderError(output, ", ".join(differing))
        return manifest

    def write_manifest(self, output: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Add this plan to *manifest*, the one that is there, and write it; return it.

        Raises:
            OSError: The disk refuses.
        """
        presets = dict.fromkeys([*manifest.get("presets", ()), *self.presets])
        seeds = sorted({*manifest.get("seeds", ()), *self.seeds})
        written = {
            "kind": KIND,
            "settings": self._identity,
            "initial_weights": {},
            "environment": {},
            **manifest,
            "presets": list(presets),
            "seeds": seeds,
        }
        write_manifest(output, written)
        return written

    @property
    def _identity(self) -> dict[str, Any]:
        settings = self.settings.as_dict()
        return {name: value for name, value in settings.items() if name not in _OF_THE_MACHINE}


def _require_distinct(name: str, values: Collection[object]) -> None:
    if not values:
        raise LabError(f"a sweep needs at least one {name}")
    if len(set(values)) != len(values):
        twice = sorted({str(value) for value in values if list(values).count(value) > 1})
        raise LabError(f"{name} {', '.join(twice)} is named twice")


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, kind) for item in value)


def has_ended(summary: CellSummary | None, *, repeat_failed: bool) -> bool:
    """Whether a cell need not be run, again."""
    if summary is None or summary.category == INTERRUPTED:
        return False
    return summary.category == COMPLETED or not repeat_failed


def summary_of(output: Path, cell: Cell) -> CellSummary | None:
    """How *cell* ended; None if it has not.

    Raises:
        ResultsError: The summary cannot be read, or is that of another cell.
    """
    folder = CellFolder.of(output, cell.preset, cell.seed)
    summary = folder.summary()
    if summary is not None:
        require_own(summary, cell.preset, cell.seed, folder.path)
    return summary
