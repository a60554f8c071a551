"""``lab sweep`` and ``lab ppo-sweep``: what would run, and what is refused."""

from genesis_fp16.cli.lab.errors import LabFailedError


def test_a_sweep_shows_what_would_run_and_writes_nothing(ask, tmp_path):
    cells = ["--preset", "bf16_pure", "--preset", "fp32_baseline", "--seed", "0", "--seed", "1"]
    command = ["lab", "sweep", "--dry-run", "--device", "cpu", "--output", str(tmp_path), *cells]
    shown = ask(*command)
    assert shown.exit_code == 0, shown.output
    assert "4 of 4 cells would run, 120 updates" in shown.output
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_refuses_wrong_presets_and_foreign_folders(ask, tmp_path):
    wrong = ask("lab", "ppo-sweep", "bf16_pur", "--output", str(tmp_path))
    assert isinstance(wrong.exception, LabFailedError)
    assert "mean bf16_pure" in str(wrong.exception)
    lost = ask("lab", "sweep", "--device", "gpu", "--output", str(tmp_path), "--dry-run")
    assert isinstance(lost.exception, LabFailedError)
    assert "cuda:N, got 'gpu'" in str(lost.exception)
    (tmp_path / "runs").mkdir()
    foreign = ask("lab", "sweep", "--output", str(tmp_path), "--dry-run")
    assert isinstance(foreign.exception, LabFailedError)
    assert "another sweep" in str(foreign.exception)
