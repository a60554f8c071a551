"""Replays under presets: results on disk, the loss scale, what a preset costs."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn

from infrastructure.events import Role
from infrastructure.events.role_precision import PRESETS, UnknownPresetError
from infrastructure.precision_lab.experiments import WorldModelExperiment
from infrastructure.precision_lab.frozen import (
    FrozenFolder,
    load_policy_experiment,
    save_policy_experiment,
)
from infrastructure.precision_lab.replay import chosen_presets, replay_folder, replay_under
from tests.infrastructure.precision_lab.small_experiment import small_experiment

pytestmark = pytest.mark.process  # trains for seconds


@pytest.fixture(scope="module")
def frozen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab") / "frozen"
    save_policy_experiment(folder, small_experiment(), source={"task": "test"}, seed=3)
    return FrozenFolder(folder)


@pytest.fixture(scope="module")
def results(frozen, tmp_path_factory):
    output, found = tmp_path_factory.mktemp("results"), {}
    experiment = load_policy_experiment(frozen, torch.device("cpu"))
    for name in ("fp32_baseline", "bf16_pure", "flowrl_bf16"):
        replay_folder(frozen, experiment, name, output)
        found[name] = json.loads((output / "replay" / f"{name}.json").read_text())
    return found


def test_a_result_says_where_it_comes_from(frozen, results):
    result = results["bf16_pure"]
    assert result["precision"]["policy"] == "bf16/bf16/bf16"
    assert result["precision"]["kl"] == "bf16/bf16/bf16"
    assert result["seed"] == 3
    assert result["environment"]["torch"] == torch.__version__
    hashes = result["frozen"]["weights_sha256"]
    assert hashes["policy"] == frozen.manifest.files["weights/policy.pt"].sha256
    assert result["not_finite"] == []


def test_fp32_has_no_error_and_half_has_some(results):
    exact, pure = results["fp32_baseline"], results["bf16_pure"]
    for name in ("log_probs", "reference_log_probs", "rewards", "values", "kl"):
        assert exact["errors"][name]["abs_err_max"] < 1e-5
        assert pure["errors"][name]["abs_err_max"] > 1e-4
    assert exact["gradients"]["relative_error"] < 1e-4
    assert 1e-3 < pure["gradients"]["relative_error"] < 1
    assert exact["metrics"]["mismatch_k3"] < 1e-10 < pure["metrics"]["mismatch_k3"]


def test_kl_and_ratio_are_those_of_a_policy_that_has_moved(results):
    for result in results.values():
        metrics = result["metrics"]
        assert metrics["exact_kl_penalty_mean"] > 1e-5
        assert metrics["ratio_one_frac"] < 0.5
        assert metrics["valid_token_count"] == len(result["tokens"]["ratio"])


def test_masters_lose_less_than_a_pure_preset(results):
    error = {n: r["errors"]["log_probs"]["abs_err_mean"] for n, r in results.items()}
    assert error["flowrl_bf16"] < error["bf16_pure"]


def test_an_unknown_preset_is_refused_before_anything_is_computed(frozen, tmp_path):
    experiment = replace(small_experiment(), models={})
    with pytest.raises(UnknownPresetError, match="mean bf16_pure"):
        replay_folder(frozen, experiment, "bf16_pur", tmp_path)
    assert not (tmp_path / "replay").exists()


def test_all_means_every_preset_that_lowers_a_role_of_the_experiment():
    assert [each.name for each in chosen_presets("all")] == list(PRESETS)
    names = [each.name for each in chosen_presets("all", {Role.WORLD_MODEL: None})]
    assert "flowrl_fp16" in names
    assert "fp32_baseline" in names
    assert "bf16_pure" not in names  # it has the world model in FP32


@pytest.mark.parametrize(("size", "scale"), [(1e-3, 2.0**16), (1e2, 2.0**8)])
def test_the_loss_scale_backs_off_until_the_gradients_are_finite(size, scale):
    torch.manual_seed(0)
    model = nn.Linear(4, 1).eval()
    experiment = WorldModelExperiment(
        models={Role.WORLD_MODEL: model},
        batches=[{"x": torch.ones(2, 4)}],
        loss=lambda forward, batch: size * forward(batch["x"]).sum(),
    )
    found = replay_under(experiment, PRESETS["flowrl_fp16"])
    assert found.loss_scale == scale
    gradient = found.outcome.gradients()["world_model.weight"]
    torch.testing.assert_close(gradient, torch.full((1, 4), 2 * size), rtol=1e-3, atol=0)
