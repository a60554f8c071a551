import pytest
import torch
from torch import nn

from infrastructure.events.precision_state import PrecisionName
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.ppo.trained_role import SeenTypes, TrainedRole

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
    out = TrainedRole(network, CPU, RolePrecision.parse(text))(torch.ones(3, 4))
    assert seen.describe(out) == text
    out.float().sum().backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.dtype == parameter.dtype


@pytest.mark.parametrize(("half", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_pure_role_computes_what_the_module_in_half_computes(
    half: PrecisionName, dtype: torch.dtype
) -> None:
    expected = _network().to(dtype)(torch.ones(3, 4, dtype=dtype))
    role = TrainedRole(_network(), CPU, RolePrecision(half, half, half))
    assert torch.equal(role(torch.ones(3, 4)), expected)


def test_half_weights_under_fp32_operations_are_refused() -> None:
    with pytest.raises(LabError, match="bf16/fp32/fp32"):
        TrainedRole(_network(), CPU, RolePrecision("bf16", "fp32", "fp32"))


def test_types_of_a_layer_that_has_not_run_are_unknown() -> None:
    with pytest.raises(RuntimeError, match="has not run"):
        SeenTypes(_network()).describe(torch.ones(1))
