import torch

from infrastructure.torch_internals import gradient_norms


def test_this_torch_passes_the_check_and_the_other_way_agrees():
    assert gradient_norms.norms is torch._foreach_norm
    tensors = [torch.randn(4, 3), torch.full((2,), float("nan")), torch.randn(5)]
    for one, other in zip(
        gradient_norms.norms(tensors), gradient_norms._one_by_one(tensors), strict=True
    ):
        torch.testing.assert_close(one, other, equal_nan=True)
