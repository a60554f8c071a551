"""Sweeps in real processes, killed for real."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo import CellSettings
from infrastructure.precision_lab.results import CellFolder
from infrastructure.precision_lab.sweep import (
    RefusedError,
    SweepPlan,
    cells_to_run,
    pool,
    run_sweep,
)
from tests.patience import wait_until
from tests.preloaded import SWEEP, ForkedPopen

ROOT = Path(__file__).resolve().parents[4]

TINY = CellSettings(
    width=8,
    layers=1,
    warm_up_steps=2,
    reward_model_steps=2,
    preparation_batch=4,
    completions=4,
    updates=40,
)
PLAN = SweepPlan(
    presets=("bf16_fp32_kl", "fp32_baseline", "flowrl_bf16"), seeds=(0,), settings=TINY
)


def _start(output: Path) -> subprocess.Popen[bytes]:
    given = json.dumps([PLAN.presets, TINY.as_dict()])
    command = [sys.executable, "-P", "-m", SWEEP, given, str(output)]
    return ForkedPopen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})


def _steps(output: Path, preset: str) -> bytes:
    path = CellFolder.of(output, preset, 0).path / "step_metrics.jsonl"
    return path.read_bytes() if path.exists() else b""


def _results(output: Path) -> dict[str, list[dict[str, object]]]:
    found = {name: CellFolder.of(output, name, 0).steps() for name in PLAN.presets}
    return {name: [{**each, "seconds": 0} for each in steps] for name, steps in found.items()}


@pytest.mark.usefixtures("forked")
def test_a_sweep_killed_twice_ends_as_one_that_was_not(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole", tmp_path / "killed"
    assert run_sweep(PLAN, whole).counts == {"completed": 3}
    first = PLAN.presets[0]

    sweep = _start(output)
    wait_until(lambda: _steps(output, PLAN.presets[1]).count(b"\n") > 3, "the second cell")
    sweep.kill()  # its worker notices
    sweep.wait(timeout=300)
    kept = CellFolder.of(output, first, 0).summary()
    assert kept is not None
    assert [each.preset for each in cells_to_run(PLAN, output)] == list(PLAN.presets[1:])

    sweep = _start(output)
    wait_until(lambda: _steps(output, PLAN.presets[2]).count(b"\n") > 3, "the third cell")
    sweep.send_signal(signal.SIGINT)
    assert sweep.wait(timeout=300) == 1
    stands = json.loads((output / "sweep_summary.json").read_text())
    assert stands["interrupted"]
    assert stands["counts"] == {"completed": 2, "interrupted": 1}

    lines: list[str] = []
    result = run_sweep(PLAN, output, emit=lines.append)
    assert result.counts == {"completed": 3}
    assert [line.split("] ")[1].split(":")[0] for line in lines if "completed" in line] == [
        "flowrl_bf16 seed 0"
    ]
    assert CellFolder.of(output, first, 0).summary() == kept
    assert _results(output) == _results(whole)  # also the cells that were killed in between


@pytest.mark.usefixtures("forked")
def test_a_dead_worker_costs_its_cell_and_a_full_folder_the_rest(tmp_path: Path) -> None:
    plan = replace(PLAN, settings=replace(TINY, updates=4))
    killed: list[str] = []
    ForkedPopen.start_base()
    others = psutil.Process().children()  # from which tests fork

    def kill_once(line: str) -> None:
        if "completed" in line and not killed:  # the first cell
            killed.append(line)
            [worker] = set(psutil.Process().children()) - set(others)
            worker.kill()

    result = run_sweep(plan, tmp_path, emit=kill_once)
    assert result.counts == {"completed": 2, "unknown": 1}
    reasons = [each.reason for each in result.summaries.values() if each and each.reason]
    assert reasons == ["the worker process has ended with SIGKILL; see workers.log"]
    assert not cells_to_run(plan, tmp_path)
    failed = cells_to_run(plan, tmp_path, repeat_failed=True)
    assert [each.preset for each in failed] == ["fp32_baseline"]

    folder = CellFolder.of(tmp_path, "bf16_fp32_kl", 1).path
    folder.write_text("in the way")
    with pytest.raises(RefusedError, match="ended are kept"):
        run_sweep(replace(plan, seeds=(1,)), tmp_path)
    assert not cells_to_run(plan, tmp_path)


@pytest.mark.usefixtures("forked")
def test_a_worker_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_KILLED_AFTER_SECONDS", 0.0)
    plan = replace(PLAN, settings=replace(TINY, updates=4, timeout_seconds=4.0))
    stopped: list[str] = []
    ForkedPopen.start_base()
    others = psutil.Process().children()  # from which tests fork

    def stop_once(line: str) -> None:
        if "completed" in line and not stopped:  # the first cell
            stopped.append(line)
            [worker] = set(psutil.Process().children()) - set(others)
            worker.suspend()

    result = run_sweep(plan, tmp_path, emit=stop_once)
    assert result.counts == {"completed": 2, "timeout": 1}
    reasons = [each.reason for each in result.summaries.values() if each and each.reason]
    assert reasons == ["no end after 4 s; killed"]


def test_a_sweep_that_has_ended_starts_no_process(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="jobs"):
        run_sweep(PLAN, tmp_path, jobs=0)
    assert len(cells_to_run(PLAN, tmp_path)) == 3
    assert list(tmp_path.iterdir()) == []
