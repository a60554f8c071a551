import json
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.files import json_text
from infrastructure.precision_lab.results import (
    FORMAT,
    CellFolder,
    CellSummary,
    ResultsError,
    cell_folders,
    read_manifest,
    read_number,
    read_object,
    write_manifest,
)


def _strict(text: str) -> object:
    """Parse as a reader does that knows no NaN and no Infinity."""

    def refuse(name: str) -> object:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def _refusal(read: Callable[[], object], otherwise: str) -> str:
    try:
        read()
    except ResultsError as error:
        return str(error)
    return otherwise


def _summary(**changed: object) -> CellSummary:
    given: dict[str, object] = {
        "preset": "bf16_pure",
        "seed": 3,
        "category": "completed",
        "updates": 2,
        "planned_updates": 2,
        "seconds": 1.5,
        "cpu_seconds": 1.25,
    }
    return CellSummary(**{**given, **changed})  # type: ignore[arg-type]


@given(st.floats() | st.none())
def test_every_number_comes_back_through_strict_json(number: float | None) -> None:
    found = _strict(json_text({"value": [number]}))
    assert isinstance(found, dict)
    read = read_number(found["value"][0])
    assert read == number or (number is not None and math.isnan(number) and math.isnan(read or 0))


def test_text_that_is_no_number_is_refused() -> None:
    with pytest.raises(ValueError, match="'high'"):
        read_number("high")


def test_a_cell_has_ended_when_its_summary_is_there(tmp_path: Path) -> None:
    folder = CellFolder.of(tmp_path, "bf16_pure", 3)
    folder.begin({"preset": "bf16_pure"})
    folder.append({"step": 1, "loss": 0.5})
    folder.append({"step": 2, "loss": math.nan})
    assert folder.summary() is None
    summary = _summary(metrics={"loss": math.inf, "value_max": None}, totals={"skipped": 1.0})
    folder.finish(summary)
    assert folder.summary() == summary
    assert json.loads((folder.path / "config.json").read_text()) == {"preset": "bf16_pure"}
    assert folder.steps() == [{"step": 1, "loss": 0.5}, {"step": 2, "loss": "nan"}]
    for path in folder.path.iterdir():
        for line in (
            path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        ):
            _strict(line)
    assert [(preset, seed) for preset, seed, _ in cell_folders(tmp_path)] == [("bf16_pure", 3)]


def test_a_new_attempt_leaves_nothing_of_the_last_one(tmp_path: Path) -> None:
    folder = CellFolder.of(tmp_path, "bf16_pure", 0)
    folder.begin({})
    folder.append({"step": 1})
    folder.finish(_summary())
    folder.begin({})
    assert folder.summary() is None
    assert folder.steps() == []


def test_the_steps_are_on_the_disk_before_the_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flushed = CellFolder(tmp_path), list[str]()
    folder.begin({})
    fsync = os.fsync

    def record(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        assert not (tmp_path / "run_summary.json").exists() or "step_metrics.jsonl" in flushed
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    folder.finish(_summary())
    assert flushed[0] == "step_metrics.jsonl"


def test_the_line_that_a_kill_has_torn_is_left_out(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    folder.begin({})
    folder.append({"step": 1})
    with (tmp_path / "step_metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo')
    assert folder.steps() == [{"step": 1}]


@given(st.binary(max_size=200))
def test_damaged_files_are_named(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    folder = CellFolder(tmp_path_factory.mktemp("cell"))
    for name, read in (
        ("config.json", lambda: read_object(folder.path / "config.json")),
        ("run_summary.json", folder.summary),
        ("step_metrics.jsonl", folder.steps),
    ):
        path = folder.path / name
        path.write_bytes(content)
        assert str(path) in _refusal(read, str(path))


@pytest.mark.parametrize(
    "changed",
    [{"category": []}, {"updates": "8"}, {"updates": True}, {"seconds": "inf"}, {"environment": 1}],
)
def test_a_summary_with_other_types_is_named(changed: dict[str, Any], tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    folder.finish(_summary())
    written = read_object(tmp_path / "run_summary.json")
    (tmp_path / "run_summary.json").write_text(json_text(written | changed))
    with pytest.raises(ResultsError, match=f"{next(iter(changed))} is a"):
        folder.summary()


def test_a_pipe_in_place_of_a_result_does_not_block(tmp_path: Path) -> None:
    for name in ("run_summary.json", "step_metrics.jsonl"):
        os.mkfifo(tmp_path / name)
    folder = CellFolder(tmp_path)
    for read in (folder.summary, folder.steps):
        with pytest.raises(ResultsError, match="regular file"):
            read()


def test_results_of_a_newer_version_are_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, {"kind": "ppo-sweep"})
    assert read_manifest(tmp_path) == {"kind": "ppo-sweep"}
    newer = json_text({"format": FORMAT + 1})
    (tmp_path / "experiment_manifest.json").write_text(newer)
    (tmp_path / "run_summary.json").write_text(newer)
    with pytest.raises(ResultsError, match="format 2"):
        read_manifest(tmp_path)
    with pytest.raises(ResultsError, match="format 2"):
        CellFolder(tmp_path).summary()


def test_a_folder_without_a_manifest_has_none(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None


def test_a_summary_that_does_not_fit_on_the_disk_changes_nothing(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    folder.begin({})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.finish(_summary(reason="x" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert folder.summary() is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "step_metrics.jsonl"]


def test_a_line_that_does_not_fit_on_the_disk_is_an_error(tmp_path: Path) -> None:
    folder = CellFolder(tmp_path)
    folder.begin({})
    folder.append({"step": 0})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            folder.append({"step": 1, "reason": "x" * 100})  # a part of it fits
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert folder.steps() == [{"step": 0}]
