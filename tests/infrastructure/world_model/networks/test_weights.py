import pytest
import torch

from infrastructure.world_model import ModelFileError
from infrastructure.world_model.networks.weights import BestEpoch


def _network(value):
    network = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(network.weight, value)
    return network


def test_the_best_weights_come_back_after_a_restart(tmp_path):
    best = BestEpoch(tmp_path / "best.pt")
    best.save_if_better(float("nan"), _network(9))
    best.save_if_better(3.0, _network(3))
    best.save_if_better(1.0, _network(1))
    resumed = BestEpoch(tmp_path / "best.pt")
    resumed.save_if_better(2.0, _network(2))
    network = _network(0)
    resumed.restore(network)
    assert network.weight.tolist() == [[1.0, 1.0]]


def test_without_a_saved_epoch_the_network_is_unchanged(tmp_path):
    network = _network(5)
    BestEpoch(tmp_path / "best.pt").restore(network)
    assert network.weight.tolist() == [[5.0, 5.0]]


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "best.pt"
    BestEpoch(path).save_if_better(1.0, _network(1))
    with pytest.raises(ModelFileError, match="another network"):
        BestEpoch(path).restore(torch.nn.Linear(3, 1))
    torch.save([1, 2], path)
    with pytest.raises(ModelFileError, match="weights of an epoch"):
        BestEpoch(path)
    path.write_bytes(b"torn")
    with pytest.raises(ModelFileError, match=str(path)):
        BestEpoch(path)
