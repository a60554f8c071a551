from pathlib import Path
from typing import Any

import pytest

from infrastructure.events.role_precision import UnknownPresetError
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo.settings import CellSettings
from infrastructure.precision_lab.results import CellSummary, ResultsError, write_manifest
from infrastructure.precision_lab.sweep.plan import (
    Cell,
    ForeignFolderError,
    SweepPlan,
    has_ended,
    summary_of,
)
from tests.infrastructure.precision_lab.report.results_folder import write_cell


def _plan(
    presets: tuple[str, ...] = ("bf16_pure", "fp32_baseline"),
    seeds: tuple[int, ...] = (0, 1),
    **settings: float,
) -> SweepPlan:
    chosen = CellSettings(**settings)  # type: ignore[arg-type]
    return SweepPlan(presets=presets, seeds=seeds, settings=chosen)


def test_cells_of_one_seed_come_before_the_next() -> None:
    assert [str(each) for each in _plan().cells] == [
        "bf16_pure seed 0",
        "fp32_baseline seed 0",
        "bf16_pure seed 1",
        "fp32_baseline seed 1",
    ]


def test_wrong_plans_are_refused() -> None:
    with pytest.raises(UnknownPresetError, match="mean bf16_pure"):
        _plan(("bf16_pur",))
    with pytest.raises(LabError, match=r"seed 1 .*twice"):
        _plan(seeds=(1, 1))
    with pytest.raises(LabError, match="one preset"):
        _plan(())
    for seed in (-1, 2**63):
        with pytest.raises(LabError, match=f"got {seed}"):
            _plan(seeds=(seed,))


def test_a_folder_can_be_continued_with_more_presets_and_seeds(tmp_path: Path) -> None:
    _plan().write_manifest(tmp_path, {})
    wider = _plan(("bf16_pure", "fp16_pure"), (2,))
    found = wider.write_manifest(tmp_path, wider.check_folder(tmp_path))
    assert found["presets"] == ["bf16_pure", "fp32_baseline", "fp16_pure"]
    assert found["seeds"] == [0, 1, 2]


def test_a_folder_of_another_sweep_is_refused_with_the_difference(tmp_path: Path) -> None:
    _plan(updates=60).write_manifest(tmp_path, {})
    with pytest.raises(ForeignFolderError, match="updates is 60 there and 8 here"):
        _plan(updates=8).check_folder(tmp_path)
    _plan(updates=60, timeout_seconds=5.0).check_folder(tmp_path)  # it changes no result
    settings = {name: n for name, n in _plan().settings.as_dict().items() if name != "clip"}
    write_manifest(tmp_path, {"kind": "ppo-sweep", "settings": settings})
    with pytest.raises(ForeignFolderError, match=r"clip is None there and 0\.2 here"):
        _plan().check_folder(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    assert _plan().check_folder(tmp_path / "new") == {}
    (tmp_path / "runs").mkdir()
    with pytest.raises(ForeignFolderError, match=r"no experiment_manifest\.json"):
        _plan().check_folder(tmp_path)
    write_manifest(tmp_path, {"kind": "probe"})
    with pytest.raises(ForeignFolderError, match="'probe'"):
        _plan().check_folder(tmp_path)


@pytest.mark.parametrize(
    "changed", [{"seeds": ["0"]}, {"presets": 1}, {"initial_weights": []}, {"environment": "cpu"}]
)
def test_a_manifest_with_other_types_is_refused(changed: dict[str, Any], tmp_path: Path) -> None:
    written = _plan().write_manifest(tmp_path, {})
    write_manifest(tmp_path, written | changed)
    with pytest.raises(ForeignFolderError, match=f"no .* {next(iter(changed))}"):
        _plan().check_folder(tmp_path)


def test_the_summary_of_another_cell_is_refused(tmp_path: Path) -> None:
    write_cell(tmp_path, "fp32_baseline", 0)
    runs = tmp_path / "runs"
    (runs / "fp32_baseline_seed0").rename(runs / "bf16_pure_seed1")
    with pytest.raises(ResultsError, match="fp32_baseline seed 0"):
        summary_of(tmp_path, Cell(1, "bf16_pure"))


@pytest.mark.parametrize(
    ("category", "ended", "ended_when_repeating"),
    [("completed", True, True), ("nan_loss", True, False), ("interrupted", False, False)],
)
def test_what_has_ended(category: str, ended: bool, ended_when_repeating: bool) -> None:
    summary = CellSummary(
        preset="bf16_pure",
        seed=0,
        category=category,
        updates=1,
        planned_updates=1,
        seconds=1.0,
        cpu_seconds=1.0,
    )
    assert has_ended(summary, repeat_failed=False) is ended
    assert has_ended(summary, repeat_failed=True) is ended_when_repeating
    assert not has_ended(None, repeat_failed=False)
