import csv
import subprocess
import sys
from pathlib import Path

import pytest
import structlog
import torch

from benchmarks.scenarios.__main__ import SCENARIOS, compare, main
from benchmarks.scenarios.trajectories import TRANSITIONS, build_data
from tests.preloaded import RUN_FILE

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
SCRIPTS = Path(__file__).parents[3] / "scripts"


def test_promised_scenarios():
    promised = {"warmup": (1, 128), "standard": (3, 256), "stress": (5, 512)}
    assert {n: (s.epochs, s.trajectories) for n, s in SCENARIOS.items()} == promised


def test_a_speed_up_of_fp32_over_fp32_is_refused(tmp_path, capsys):
    try:
        main(
            ["--device", "cpu", "--scenario", "warmup", "--rounds", "1", "--output", str(tmp_path)]
        )
    finally:
        structlog.reset_defaults()
    with (tmp_path / "fp16_vs_fp32_results.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["requested"], row["effective"]) == ("fp16", "fp32")
    assert row["reason"] == "no_accelerator"
    assert row["speedup"] == ""
    assert row["remark"].startswith("speed-up refused: both")
    assert row["held_out_loss"] == row["fp32_held_out_loss"]
    assert "speed-up refused" in capsys.readouterr().out


def test_half_precision_that_was_computed_has_a_figure():
    (row,) = compare(SCENARIOS["warmup"], ["fp16"], CPU, cpu_half=True, rounds=1, seed=0)
    assert row["effective"] == "fp16"
    assert float(row["speedup"]) > 0
    assert float(row["overflow_rate"]) == 0
    assert float(row["held_out_loss"]) == pytest.approx(float(row["fp32_held_out_loss"]), rel=0.01)


def test_whole_trajectories_are_held_out_and_data_repeat():
    batches, held_out = build_data(16, CPU, seed=0)
    again, _ = build_data(16, CPU, seed=0)
    assert len(held_out.x) == 2 * TRANSITIONS
    assert sum(len(batch.x) for batch in batches) == 14 * TRANSITIONS
    assert torch.equal(batches[3].x, again[3].x)
    # Within a held-out trajectory each target is the next input's observation.
    assert torch.equal(held_out.y[0], held_out.x[1, :8])


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize("name", ["benchmark_fp16_training", "benchmark_fp16_comprehensive"])
def test_scripts_run_from_anywhere(tmp_path, name):
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN_FILE, SCRIPTS / f"{name}.py", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--device" in done.stdout
