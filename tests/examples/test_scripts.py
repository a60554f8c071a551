"""The single files of examples/, to which pages link."""

import runpy
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract.on_policy_job import OnPolicyJob

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_the_newest_line_of_a_verl_log_becomes_prometheus_text() -> None:
    names = runpy.run_path(str(EXAMPLES / "verl_textfile.py"))
    data = '{"rollout_corr/k3_kl": 0.001, "training/epoch": 0, "note": "x", "done": true}'
    step = f'{{"step": 7, "data": {data}}}'
    expected = (
        'verl_step{experiment="flowrl"} 7\nverl_rollout_corr_k3_kl{experiment="flowrl"} 0.001\n'
        'verl_training_epoch{experiment="flowrl"} 0\n'
    )
    for log, text in (("", ""), (f"{step}\n", expected), (f'{step}\n{{"step": 8, "da', expected)):
        assert names["exposition"](log, "flowrl") == text


def test_both_networks_of_the_gan_train_in_fp16() -> None:
    names = runpy.run_path(str(EXAMPLES / "gan.py"))
    for network in ("generator", "critic"):
        stats = names[network].get_stats()
        assert (stats["fp16_steps"], stats["nonfinite_loss_steps"]) == (32, 0)
        assert stats["applied_steps"] > 20


def test_the_example_is_an_on_policy_job() -> None:
    names = runpy.run_path(str(EXAMPLES / "on_policy_job.py"))
    assert isinstance(names["job"], OnPolicyJob)
    [batch] = names["batches"](0, None)  # the warm-up
    assert names["loss"](names["job"].model, batch).isfinite()
    assert 0 <= names["evaluate"](names["job"].model).metrics["reward"] <= 1
