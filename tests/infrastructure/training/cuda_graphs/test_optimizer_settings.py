import pytest
import torch

from infrastructure.training.cuda_graphs.optimizer_settings import GraphedSettings

CPU = torch.device("cpu")


@pytest.fixture
def optimizer() -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": 0.1}, {"params": weights[1:], "lr": 0.2}]
    return torch.optim.AdamW(groups)


def test_a_recorded_step_reads_its_rates_from_the_device(optimizer: torch.optim.Optimizer) -> None:
    settings = GraphedSettings(optimizer, CPU)
    with settings.on_device():
        rates = [group["lr"] for group in optimizer.param_groups]
        assert all(isinstance(rate, torch.Tensor) for rate in rates)
        assert all(group["capturable"] for group in optimizer.param_groups)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    assert not any(group["capturable"] for group in optimizer.param_groups)
    optimizer.param_groups[1]["lr"] = 0.05
    settings.update_learning_rates()
    assert [float(rate) for rate in rates] == pytest.approx([0.1, 0.05])


def test_settings_return_after_an_error(optimizer: torch.optim.Optimizer) -> None:
    with pytest.raises(KeyError), GraphedSettings(optimizer, CPU).on_device():
        raise KeyError
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]


def test_constants_change_when_a_setting_does_and_not_with_the_rate(
    optimizer: torch.optim.Optimizer,
) -> None:
    settings = GraphedSettings(optimizer, CPU)
    before = settings.recorded_values()
    optimizer.param_groups[0]["lr"] = 7.0
    assert settings.recorded_values() == before
    optimizer.param_groups[0]["weight_decay"] = 7.0
    assert settings.recorded_values() != before
