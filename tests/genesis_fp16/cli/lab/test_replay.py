"""``lab replay``: figures that are not finite."""

import pytest


@pytest.mark.process
def test_figures_that_are_not_finite_are_printed(ask, tmp_path):
    pytest.importorskip("transformers")
    import torch

    from infrastructure.events import Role
    from infrastructure.precision_lab.frozen import save_policy_experiment
    from tests.infrastructure.precision_lab.small_experiment import small_experiment

    experiment = small_experiment()
    with torch.no_grad():
        experiment.models[Role.VALUE].output.bias.add_(70000)  # more than FP16 holds
    save_policy_experiment(tmp_path / "frozen", experiment, source={}, seed=0)
    arguments = ["--preset", "fp16_pure", "--output", str(tmp_path / "out"), "--device", "cpu"]
    done = ask("lab", "replay", str(tmp_path / "frozen"), *arguments)
    assert done.exit_code == 0, done.exception
    assert done.stdout.splitlines()[1].split()[:3] == ["fp16_pure", "not", "finite"]
    assert "not finite: " in done.stdout
