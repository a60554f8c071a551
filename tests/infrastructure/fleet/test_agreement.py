import torch

from infrastructure.fleet.agreement import elementwise_agrees, is_aligned, runs_agree

CPU = torch.device("cpu")


def test_alignment_is_that_of_torchs_allocations():
    assert is_aligned(16)
    assert not is_aligned(8)
    assert not is_aligned(16, torch.bfloat16)


def test_a_remainder_or_a_division_among_threads_forbids_elementwise_stacks():
    assert elementwise_agrees(64, 1000)
    assert not elementwise_agrees(65, 2)
    torch.set_num_threads(2)
    assert elementwise_agrees(64, 4)
    assert not elementwise_agrees(64, 1000)


def test_a_sum_in_another_order_does_not_agree():
    def alone(x):
        return x.cumsum(0)

    def backwards(x):
        return x.flip(1).cumsum(1).flip(1)

    before = torch.get_rng_state()
    assert runs_agree(lambda x: x.cumsum(1), alone, [(9,)], members=3, device=CPU)
    assert not runs_agree(backwards, alone, [(9,)], members=3, device=CPU)
    assert torch.equal(before, torch.get_rng_state())


def test_a_gradient_that_differs_does_not_agree():
    def detached(x):
        return x * x.detach()

    assert not runs_agree(lambda x: x * x, detached, [(4,)], members=2, device=CPU)
