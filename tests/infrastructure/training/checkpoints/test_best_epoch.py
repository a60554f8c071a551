import hashlib
import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infrastructure.agent_contract import Evaluation
from infrastructure.training.checkpoints import BestEpoch, BestEpochError
from infrastructure.training.precision.frozen_base import FrozenBase

LOSS = {"metrics": {"loss": 1.0}, "primary": "loss", "higher_is_better": False}


def _network(value):
    network = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(network.weight, value)
    return network


def _loss(value):
    return Evaluation(metrics={"loss": value}, primary="loss", higher_is_better=False)


def test_the_best_weights_come_back_after_a_restart(tmp_path):
    best = BestEpoch(tmp_path / "best.pt")
    best.save_if_better(_loss(float("nan")), _network(9))
    best.save_if_better(_loss(3.0), _network(3))
    best.save_if_better(_loss(1.0), _network(1))
    resumed = BestEpoch(tmp_path / "best.pt")
    resumed.save_if_better(_loss(2.0), _network(2))
    network = _network(0)
    assert resumed.restore(network) == _loss(1.0)
    assert network.weight.tolist() == [[1.0, 1.0]]


def test_without_a_saved_epoch_the_network_is_unchanged(tmp_path):
    network = _network(5)
    assert BestEpoch(tmp_path / "best.pt").restore(network) is None
    assert network.weight.tolist() == [[5.0, 5.0]]


def test_a_damaged_file_is_named_once_and_replaced_by_the_next_epoch(tmp_path):
    path, problems = tmp_path / "best.pt", []
    path.write_bytes(b"torn")
    with pytest.raises(BestEpochError, match=str(path)):
        BestEpoch(path)
    best = BestEpoch(path, problems.append)
    network = _network(5)
    best.restore(network)
    assert network.weight.tolist() == [[5.0, 5.0]]
    assert len(problems) == 1
    best.save_if_better(_loss(7.0), _network(7))
    best.restore(network)
    assert network.weight.tolist() == [[7.0, 7.0]]
    assert len(problems) == 1


def test_the_weights_of_another_network_change_nothing(tmp_path):
    path, problems = tmp_path / "best.pt", []
    BestEpoch(path).save_if_better(_loss(1.0), _network(1))
    other = torch.nn.Linear(3, 1)
    before = other.state_dict()["weight"].clone()
    BestEpoch(path, problems.append).restore(other)
    assert "another network" in str(problems[0])
    assert torch.equal(other.state_dict()["weight"], before)
    assert other.bias.item() != 1.0


@pytest.mark.parametrize(
    "saved",
    [
        {"loss": 1.0, "network": {}},
        {**LOSS, "metrics": {"loss": "low"}, "network": {}},
        {**LOSS, "metrics": {"loss": torch.ones(2)}, "network": {}},
        {**LOSS, "metrics": 1.0, "network": {}},
        {**LOSS, "primary": "other", "network": {}},
        {**LOSS, "more": 1.0, "network": {}},
        [LOSS],
        LOSS,
        {**LOSS, "network": 3},
        {**LOSS, "network": {"weight": "a", "bias": "b"}},
        {**LOSS, "network": {"weight": torch.empty(1, 2, device="meta")}},
    ],
)
def test_a_whole_file_with_other_contents_is_passed_over(tmp_path, saved):
    path, buffer = tmp_path / "best.pt", io.BytesIO()
    torch.save(saved, buffer)
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    path.write_bytes(f"{digest}\n".encode() + buffer.getvalue())
    problems, network = [], _network(5)
    BestEpoch(path, problems.append).restore(network)
    assert network.weight.tolist() == [[5.0, 5.0]]
    assert len(problems) == 1


@given(data=st.data())
def test_no_flipped_bit_and_no_cut_reaches_the_network(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("w") / "best.pt"
    BestEpoch(path).save_if_better(_loss(1.0), _network(1))
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    if data.draw(st.booleans()):
        content[position] ^= 1 << data.draw(st.integers(0, 7))
    else:
        del content[position:]
    path.write_bytes(content)
    problems, network = [], _network(5)
    BestEpoch(path, problems.append).restore(network)
    assert network.weight.tolist() == [[5.0, 5.0]]
    assert len(problems) == 1


def _selected(loss):
    """An evaluation whose primary metric would choose otherwise than its selection loss."""
    return Evaluation(
        metrics={"skill": loss}, primary="skill", higher_is_better=True, selection_loss=loss
    )


def test_the_selection_loss_compares_epochs_if_there_is_one(tmp_path):
    best, network = BestEpoch(tmp_path / "best.pt"), _network(0)
    for loss in (2.0, 1.0, 3.0, float("nan")):
        best.save_if_better(_selected(loss), _network(loss))
    resumed = BestEpoch(tmp_path / "best.pt")
    resumed.save_if_better(_selected(1.5), _network(1.5))
    assert resumed.restore(network) == _selected(1.0)
    assert network.weight.tolist() == [[1.0, 1.0]]


def test_an_epoch_kept_by_an_earlier_release_is_compared_by_its_only_metric(tmp_path):
    path = tmp_path / "best.pt"
    saved = io.BytesIO()
    torch.save({**LOSS, "network": _network(1).state_dict()}, saved)
    digest = hashlib.sha256(saved.getvalue()).hexdigest()
    path.write_bytes(digest.encode() + b"\n" + saved.getvalue())
    best, network = BestEpoch(path), _network(0)
    best.save_if_better(_selected(1.5), _network(1.5))
    assert best.restore(network) == _loss(1.0)
    best.save_if_better(_selected(0.5), _network(0.5))
    assert best.restore(network) == _selected(0.5)
    assert network.weight.tolist() == [[0.5, 0.5]]


def test_a_frozen_base_is_kept_by_its_hash_and_another_one_is_refused_at_once(tmp_path):
    path, problems = tmp_path / "best.pt", []

    def adapted(value):
        base = torch.nn.Linear(2, 2).bfloat16().requires_grad_(False)
        torch.nn.init.constant_(base.weight, value)
        torch.nn.init.zeros_(base.bias)
        return torch.nn.Sequential(base, _network(value))

    best = adapted(1)
    BestEpoch(path, base=FrozenBase(best)).save_if_better(_loss(1.0), best)
    again = adapted(1)
    torch.nn.init.zeros_(again[1].weight)
    assert BestEpoch(path, base=FrozenBase(again)).restore(again) == _loss(1.0)
    assert torch.equal(again[1].weight, best[1].weight)
    kept = BestEpoch(path, problems.append, FrozenBase(adapted(2)))
    assert kept.evaluation is None
    (problem,) = problems
    assert "0.weight was bfloat16[2, 2]" in str(problem)
