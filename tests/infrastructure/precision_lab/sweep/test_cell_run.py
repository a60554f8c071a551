import json
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo import CellSettings, load, save
from infrastructure.precision_lab.results import CellFolder
from infrastructure.precision_lab.sweep.cell_run import CellTask, prepare_seed, run_cell

pytestmark = pytest.mark.process  # trains for seconds

TINY = CellSettings(
    width=8,
    layers=1,
    warm_up_steps=4,
    reward_model_steps=2,
    preparation_batch=4,
    completions=4,
    updates=3,
)


def _task(tmp_path: Path, preset: str = "bf16_fp32_kl") -> CellTask:
    weights = tmp_path / "seed0.pt"
    return CellTask(
        preset=preset,
        seed=0,
        folder=tmp_path / "cell",
        weights=weights,
        initial_weights=prepare_seed(weights, TINY, 0),
    )


def test_a_cell_leaves_configuration_steps_and_summary(tmp_path: Path) -> None:
    numbers: list[int] = []
    task = _task(tmp_path)
    assert prepare_seed(task.weights, TINY, 0) == task.initial_weights  # those that are there
    summary = run_cell(task, TINY, numbers.append)
    folder = CellFolder(task.folder)
    assert folder.summary() == summary
    assert numbers == [1, 2, 3]
    assert [each["step"] for each in folder.steps()] == [0, 1, 2]
    assert (summary.category, summary.updates) == ("completed", 3)
    assert summary.precision == summary.effective_precision
    assert summary.initial_weights == task.initial_weights
    assert summary.environment["attention"] == "math"
    assert json.loads((folder.path / "config.json").read_text())["pure"]


def test_a_failure_is_a_result(tmp_path: Path) -> None:
    task = _task(tmp_path, "fp16_pure")
    models = load(task.weights, TINY, 0)
    torch.nn.init.constant_(models.value.output.bias, 7e4)  # beyond FP16
    digest = save(task.weights, models)
    summary = run_cell(replace(task, initial_weights=digest), TINY, lambda _: None)
    assert summary.category == "inf_value_head"
    assert summary.reason.startswith("step 0: the value head")
    assert summary.totals["inf_value_head_steps"] == 1
    assert len(CellFolder(task.folder).steps()) == 1


def test_memory_that_does_not_suffice_is_a_category(tmp_path: Path) -> None:
    task = _task(tmp_path)
    settings = replace(TINY, max_new_tokens=40, completions=200_000)
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 26), before[1]))
    try:
        summary = run_cell(task, settings, lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert (summary.category, summary.updates) == ("out_of_memory", 0)


def test_other_weights_than_the_sweeps_are_refused(tmp_path: Path) -> None:
    task = replace(_task(tmp_path), initial_weights="0" * 64)
    with pytest.raises(LabError, match="other weights"):
        run_cell(task, TINY, lambda _: None)


def test_a_disk_that_refuses_is_no_failure_of_the_cell(tmp_path: Path) -> None:
    task = _task(tmp_path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))  # less than three lines
    try:
        with pytest.raises(OSError, match="File too large"):
            run_cell(task, TINY, lambda _: None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert CellFolder(task.folder).summary() is None
