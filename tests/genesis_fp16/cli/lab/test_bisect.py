"""``lab bisect`` on a small policy."""

import pytest


@pytest.mark.process  # repeats a training for seconds
def test_a_bisection_prints_what_it_found(ask, tmp_path):
    pytest.importorskip("transformers")
    from infrastructure.precision_lab.frozen import save_policy_experiment
    from tests.infrastructure.precision_lab.small_experiment import small_experiment

    save_policy_experiment(tmp_path / "frozen", small_experiment(), source={}, seed=0)
    arguments = ["--preset", "bf16_fp32_value", "--output", str(tmp_path / "results")]
    done = ask("lab", "bisect", str(tmp_path / "frozen"), *arguments, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert "no culprit" in done.stdout
    assert "0 of 10 repetitions" in done.stderr
    assert "0 repetitions of the search" in done.stderr
    assert (tmp_path / "results" / "bisect.json").is_file()
    endless = ask("lab", "bisect", str(tmp_path / "frozen"), *arguments, "--tolerance", "inf")
    assert "inf times" in endless.output
    wrong = ask("lab", "bisect", str(tmp_path), "--preset", "bf16_pur")
    assert "mean bf16_pure" in str(wrong.exception)
