import pytest
import torch
from torch import nn

from infrastructure.policy.losses.log_partition import LogPartition, prompt_mask
from infrastructure.policy.masked import TokenValueError

# Left padding, prompt, completion: row 0 is . p p r r, row 1 p p p r t r with t from a tool.
ATTENTION_BT = torch.tensor([[False, True, True, True, True, False], [True] * 6])
RESPONSE_BS = torch.tensor([[False, False, True, True, False], [False, False, True, False, True]])


@pytest.fixture
def network():
    torch.manual_seed(0)
    return LogPartition(4).eval()


def test_the_prompt_ends_with_the_token_before_the_first_generated_one():
    """The published slice ends one token earlier."""
    assert prompt_mask(ATTENTION_BT, RESPONSE_BS).tolist() == [
        [False, True, True, False, False, False],
        [True, True, True, False, False, False],
    ]


def test_without_a_generated_token_everything_real_is_prompt():
    nothing_BS = torch.zeros_like(RESPONSE_BS)
    assert torch.equal(prompt_mask(ATTENTION_BT, nothing_BS), ATTENTION_BT)


def test_the_network_is_that_of_the_paper(network):
    kinds = [type(module) for module in network.network]
    assert kinds == [nn.Linear, nn.GELU, nn.LayerNorm, nn.Dropout] * 2 + [nn.Linear]
    assert network.network[-1].out_features == 1


def test_it_sees_the_mean_of_all_prompt_tokens_and_nothing_else(network):
    hidden_BTH = torch.randn(2, 6, 4)
    mask_BT = prompt_mask(ATTENTION_BT, RESPONSE_BS)
    log_partition_B = network(hidden_BTH, mask_BT)
    means_BH = torch.stack([hidden_BTH[0, 1:3].mean(0), hidden_BTH[1, :3].mean(0)])
    assert torch.allclose(log_partition_B, network.network(means_BH)[:, 0])

    garbage_BTH = hidden_BTH.masked_fill(~mask_BT[:, :, None], torch.nan)
    assert torch.equal(network(garbage_BTH, mask_BT), log_partition_B)
    hidden_BTH[1, 2] += 1  # the last prompt token
    assert network(hidden_BTH, mask_BT)[1] != log_partition_B[1]


def test_gradients_flow_into_the_policy_from_prompt_tokens_only(network):
    hidden_BTH = torch.randn(2, 6, 4, requires_grad=True)
    mask_BT = prompt_mask(ATTENTION_BT, RESPONSE_BS)
    network(hidden_BTH, mask_BT).sum().backward()
    assert torch.equal(hidden_BTH.grad.abs().sum(2) > 0, mask_BT)


def test_gradients():
    torch.manual_seed(0)
    network = LogPartition(3, dropout=0.0).double()
    mask_BT = torch.tensor([[True, True, False]])
    hidden_BTH = torch.randn(1, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda hidden_BTH: network(hidden_BTH, mask_BT), (hidden_BTH,))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_mean_over_a_long_prompt_is_computed_in_float32(network, dtype):
    """The sum of 3,000 values of 60 overflows float16, and bfloat16 stops counting long before."""
    hidden_BTH = torch.full((1, 3000, 4), 60.0, dtype=dtype)
    hidden_BTH[..., 0] = 30.0
    mask_BT = torch.ones(1, 3000, dtype=torch.bool)
    expected_B = network(hidden_BTH[:, :1].float(), mask_BT[:, :1])
    with torch.autocast("cpu", dtype=dtype):
        log_partition_B = network(hidden_BTH, mask_BT)
    assert log_partition_B.dtype == torch.float32
    assert torch.allclose(log_partition_B, expected_B, atol=1e-5)


def test_a_row_without_a_prompt_is_finite(network):
    assert network(torch.randn(1, 2, 4), torch.zeros(1, 2, dtype=torch.bool)).isfinite().all()


def test_the_mask_is_checked(network):
    with pytest.raises(TokenValueError, match=r"prompt_mask_BT .*\(1, 2\)"):
        network(torch.randn(1, 2, 4), torch.ones(1, 2))
