import csv

import pytest

from benchmarks.data_scale.__main__ import main
from benchmarks.data_scale.agent import generate
from benchmarks.data_scale.steps import STEPS


def test_the_transitions_are_as_many_as_asked_and_the_same_each_time():
    first, second = list(generate(2500)), list(generate(2500))
    assert len(first) == 2500
    assert first == second
    assert len({row.group for row in first}) == 13


@pytest.mark.process
@pytest.mark.long
def test_a_small_measurement_has_all_steps(tmp_path, capsys):
    pytest.importorskip("pyarrow", reason="installed with the extra dev")
    assert (
        main(["--rows", "8000", "--output", str(tmp_path), "--home", str(tmp_path / "home")]) == 0
    )
    with (tmp_path / "data_scale.csv").open() as file:
        measured = {(row["step"], row["measured"]): row["value"] for row in csv.DictReader(file)}
    assert {step for step, _ in measured} == set(STEPS)
    assert float(measured["speed", "share"]) > 0
    assert float(measured["compact", "parquet_bytes_per_row"]) < 200
    assert all(0 < float(measured[step, "peak_gib"]) < 2 for step in STEPS)
    assert "share" in capsys.readouterr().out
