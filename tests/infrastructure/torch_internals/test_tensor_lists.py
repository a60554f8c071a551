import torch

from infrastructure.torch_internals import tensor_lists


def test_this_torch_passes_the_checks_and_the_other_ways_agree():
    assert tensor_lists.norms is torch._foreach_norm
    assert tensor_lists.copy_all is torch._foreach_copy_
    tensors = [torch.randn(4, 3), torch.full((2,), float("nan")), torch.randn(5)]
    fast, slow = tensor_lists.norms(tensors), tensor_lists._norm_each(tensors)
    torch.testing.assert_close(fast, slow, equal_nan=True)
    for copy in (tensor_lists.copy_all, tensor_lists._copy_each):
        copies = [torch.empty_like(tensor) for tensor in tensors]
        copy(copies, tensors)
        torch.testing.assert_close(copies, tensors, equal_nan=True)
