import pytest
import torch

from benchmarks.measuring.not_run import NotRunError
from benchmarks.step import loops
from benchmarks.step.loops import Setup
from benchmarks.step.models import SIZES, build_batches, build_model

CPU = torch.device("cpu")


@pytest.mark.parametrize("loop", [loops.folded, loops.naive, loops.ours])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_loops_train_as_the_textbook_does(start, train, loop, precision):
    """A loop that skipped clipping, unscaling or the update would not be worth timing."""
    expected = train(start(loops.textbook, precision))
    untrained = train(start(loops.textbook, precision), steps=0)
    torch.testing.assert_close(train(start(loop, precision)), expected, rtol=1e-4, atol=1e-5)
    assert (expected - untrained).abs().max() > 1e-3


@pytest.mark.parametrize("loop", [loops.folded, loops.naive, loops.ours])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_loops_clip_as_the_textbook_does(start, train, loop, precision, monkeypatch):
    """A limit so low that AdamW's epsilon counts beside the clipped gradients."""
    unclipped = train(start(loops.textbook, precision))
    monkeypatch.setattr(loops, "MAX_NORM", 1e-6)
    expected = train(start(loops.textbook, precision))
    assert (expected - unclipped).abs().max() > 1e-4
    # The textbook adds 1e-6 to the norm before it divides; the others do not.
    torch.testing.assert_close(train(start(loop, precision)), expected, rtol=1e-4, atol=2e-5)


def test_graph_is_refused_with_a_reason():
    model = build_model(SIZES["tiny"], CPU, seed=0)
    setup = Setup(model=model, device=CPU, precision="fp16", mode="graph")
    with pytest.raises(NotRunError, match="CUDA"):
        loops.ours(setup)
    with pytest.raises(NotRunError, match="eager"):
        loops.textbook(setup)


def test_models_and_batches_repeat():
    size = SIZES["tiny"]
    before = torch.get_rng_state()
    one, other = (build_model(size, CPU, seed=3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
    first, again = build_batches(size, CPU, seed=3), build_batches(size, CPU, seed=3)
    assert torch.equal(first[2].x, again[2].x)
    assert not torch.equal(first[0].x, first[1].x)
    assert first[0].x.shape == (32, 64)


def test_sizes_have_the_parameters_they_are_named_for():
    count = {
        name: sum(p.numel() for p in build_model(size, CPU, seed=0).parameters())
        for name, size in SIZES.items()
    }
    assert count["medium"] == pytest.approx(3.3e6, rel=0.02)
    assert count["medium"] == count["large"]
