import pytest
import torch
from torch import Tensor, nn

from infrastructure.events.precision_state import PrecisionName
from infrastructure.events.role_precision import RolePrecision
from infrastructure.precision_lab import LabError
from infrastructure.precision_lab.trained_forward import TrainedForward

CPU = torch.device("cpu")


class _Product(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        """Product of each row, which autocast computes in FP32."""
        return values.prod(dim=-1)


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3), _Product())


@pytest.mark.parametrize(("half", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_a_pure_role_computes_what_the_module_in_half_computes(
    half: PrecisionName, dtype: torch.dtype
) -> None:
    inputs = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    expected = _network().to(dtype)(inputs.to(dtype))
    forward = TrainedForward(_network(), CPU, RolePrecision(half, half, "fp32"))
    assert torch.equal(forward(inputs), expected.float())
    with torch.autocast("cpu", dtype=dtype):
        under_autocast = _network().to(dtype)(inputs)
    assert not torch.equal(under_autocast, expected.float())


def test_half_weights_under_fp32_operations_are_refused() -> None:
    with pytest.raises(LabError, match="bf16/fp32/fp32"):
        TrainedForward(_network(), CPU, RolePrecision("bf16", "fp32", "fp32"))


def test_modules_kept_in_fp32_keep_their_weights_in_a_pure_preset():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    types = RolePrecision("bf16", "bf16", "bf16")
    forward = TrainedForward(model, CPU, types, keep_fp32=["1"])
    assert [p.dtype for p in forward.module.parameters()] == [torch.bfloat16] * 2 + [
        torch.float32
    ] * 2
    assert forward(torch.ones(1, 2)).dtype == torch.bfloat16
