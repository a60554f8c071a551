"""The single files of examples/, to which pages link."""

import runpy
import socket
from pathlib import Path

import pytest
import torch

from infrastructure.agent_contract.on_policy_job import OnPolicyJob

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, without settings of this machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("GENESIS_ENV_FILE", "GENESIS_HOME", "GENESIS_PRECISION", "ENABLE_FP16_TRAINING"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment that torchrun gives a single rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    group = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_PORT": port}
    for name, value in {**group, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))


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


@pytest.mark.process
def test_one_rank_trains_under_ddp_and_fsdp2(empty_folder: Path, one_rank: None) -> None:
    names = runpy.run_path(str(EXAMPLES / "several_devices.py"))
    for wrap, path in ((names["DistributedDataParallel"], "ddp.pt"), (names["shard"], "fsdp2.pt")):
        assert names["train"](wrap, path).get_stats()["fp16_steps"] == 32
        assert (empty_folder / path).is_file()


def test_the_world_model_predicts(empty_folder: Path) -> None:
    names = runpy.run_path(str(EXAMPLES / "world_model.py"))
    assert 0.5 < names["prediction"].success_probability <= 1
