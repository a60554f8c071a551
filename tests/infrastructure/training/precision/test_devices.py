import pytest
import torch

from infrastructure.training.precision.devices import (
    device_name,
    native_half_types,
    resolve_device,
)


def test_auto_is_the_gpu_if_there_is_one() -> None:
    expected = "cuda" if torch.cuda.is_available() else "cpu"
    assert resolve_device("auto").type == expected
    assert resolve_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:99"])
def test_what_is_not_there_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}'"):
        resolve_device(name)


def test_a_cpu_computes_no_half_type_natively_and_has_a_name() -> None:
    cpu = torch.device("cpu")
    assert native_half_types(cpu) == {"fp16": False, "bf16": False}
    assert len(device_name(cpu).split()) == 2  # machine, vector instructions
