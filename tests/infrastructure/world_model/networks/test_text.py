import pytest
import torch
from torch import nn
from torch.nn import functional

from infrastructure.trajectories.encoding.features import Tokens
from infrastructure.world_model.networks.text import TextBags, drop_values, embed_text


@pytest.mark.parametrize("buckets", [16, 100, 70_000])  # with shares; summed; beyond 16 bits
def test_texts_and_gradients_are_those_of_an_embedding_bag(buckets):
    generator = torch.Generator().manual_seed(0)
    tokens = Tokens.of([[1, 2, 1], [], [buckets - 1], [3, 2, 5, 1, 7], []]).with_shares(buckets)
    assert (tokens.shares is not None) == (buckets == 16)
    table = torch.randn(buckets, 6, generator=generator).requires_grad_()
    means = functional.embedding_bag(tokens.buckets, table, tokens.offsets, mode="mean")
    expected = means * tokens.lengths.sqrt()[:, None]
    embedded = embed_text(table, tokens.buckets, tokens.offsets, tokens.weights, tokens.shares)
    weight = torch.randn(expected.shape, generator=generator)
    assert torch.allclose(embedded, expected, atol=1e-6)
    (expected_gradient,) = torch.autograd.grad(expected, table, weight)
    (gradient,) = torch.autograd.grad(embedded, table, weight)
    assert torch.allclose(gradient, expected_gradient, atol=1e-5)


def test_the_same_bags_serve_several_tables():
    tokens = Tokens.of([[1, 2], [3]])
    bags = TextBags(tokens.buckets, tokens.offsets, tokens.weights, 100)
    for seed in range(2):
        table = torch.randn(100, 4, generator=torch.Generator().manual_seed(seed))
        table.requires_grad_()
        bags.embed(table).square().sum().backward()
        own = table.detach().clone().requires_grad_()
        embed_text(own, tokens.buckets, tokens.offsets, tokens.weights).square().sum().backward()
        assert torch.equal(table.grad, own.grad)


def test_a_table_may_have_fewer_rows_than_there_are_shares():
    tokens, table = Tokens.of([[1, 2], [3]]).with_shares(8), torch.randn(4, 3)
    expected = embed_text(table, tokens.buckets, tokens.offsets, tokens.weights)
    assert torch.allclose(
        embed_text(table, tokens.buckets, tokens.offsets, tokens.weights, tokens.shares), expected
    )


@pytest.mark.parametrize("buckets", [16, 100])
@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_text_stays_in_float32_under_autocast(buckets, half):
    tokens, bag = Tokens.of([[1, 2], [3]]).with_shares(buckets), nn.EmbeddingBag(buckets, 4)
    full = embed_text(bag.weight, tokens.buckets, tokens.offsets, tokens.weights, tokens.shares)
    with torch.autocast("cpu", dtype=half):
        under = embed_text(
            bag.weight, tokens.buckets, tokens.offsets, tokens.weights, tokens.shares
        )
    assert torch.equal(under, full)


@pytest.mark.parametrize("probability", [0.25, 0.4, 0.97])
def test_a_share_is_dropped_and_the_rest_scaled(probability):
    value = torch.ones(1, 101, 999)  # 3 values in the last word
    dropped = drop_values(value, probability, [torch.Generator().manual_seed(1)])
    kept = dropped[dropped != 0.0]
    assert 1.0 - len(kept) / value.numel() == pytest.approx(probability, abs=0.006)
    assert kept.tolist()[:3] == pytest.approx([1.0 / (1.0 - probability)] * 3, rel=1e-3)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.1)


def test_all_or_nothing_may_be_dropped():
    value = torch.ones(1, 3, 3)
    assert torch.equal(drop_values(value, 0.0, [None]), value)
    assert torch.equal(drop_values(value, 1.0, [None]), torch.zeros(1, 3, 3))


def test_each_of_a_stack_draws_from_its_own_generator():
    value, before = torch.ones(2, 7, 9), torch.get_rng_state()  # 63 values: a word is cut
    stack = drop_values(value, 0.5, [torch.Generator().manual_seed(seed) for seed in (3, 4)])
    assert torch.equal(torch.get_rng_state(), before)
    with torch.random.fork_rng():
        for seed, dropped in zip((3, 4), stack, strict=True):
            torch.manual_seed(seed)
            first, second = (drop_values(value[:1], 0.5, [None])[0] for _ in range(2))
            assert torch.equal(first, dropped)
            assert not torch.equal(first, second)
