import pytest
import torch
from torch import nn

from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab.ppo.seen_types import SeenTypes
from infrastructure.precision_lab.trained_forward import TrainedForward

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 2))


@pytest.mark.parametrize(
    "text", ["fp32/fp32/fp32", "fp32/bf16/fp32", "bf16/bf16/bf16", "fp16/fp16/fp16"]
)
def test_types_are_those_of_the_role_and_gradients_flow(text: str) -> None:
    network = _network()
    seen = SeenTypes(network)
    out = TrainedForward(network, CPU, RolePrecision.parse(text))(torch.ones(3, 4))
    assert seen.describe(out) == text
    out.float().sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype


def test_types_of_a_layer_that_has_not_run_are_unknown() -> None:
    with pytest.raises(RuntimeError, match="has not run"):
        SeenTypes(_network()).describe(torch.ones(1))
