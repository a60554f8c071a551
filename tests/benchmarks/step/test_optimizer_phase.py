import pytest
import torch

from benchmarks.step.loops import LOSS_SCALE, MAX_NORM, Setup
from benchmarks.step.models import SIZES, build_model
from benchmarks.step.optimizer_phase import (
    _gradients,
    _ours,
    _textbook,
    compare_optimizer_phases,
    set_gradients,
)

pytestmark = pytest.mark.process  # trains for seconds

CPU = torch.device("cpu")
TINY = SIZES["tiny"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_optimizer_phases_do_the_same_work(precision):
    updated = []
    for prepare in (_ours, _textbook):
        model = build_model(TINY, CPU, seed=0)
        update = prepare(Setup(model=model, device=CPU, precision=precision))
        for _ in range(3):
            grads = _gradients(model, seed=0)
            norm = torch.nn.utils.get_total_norm(grads) / LOSS_SCALE
            assert norm > MAX_NORM, "clipping would have nothing to do"
            anchor = torch.zeros((), requires_grad=True)
            anchor.register_hook(lambda _, model=model, grads=grads: set_gradients(model, grads))
            update(anchor * 1.0)
        updated.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(*updated, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("precision", "limit"), [("fp16", 0.80), ("fp32", None)])
def test_optimizer_phase_has_a_figure_and_its_limit(precision, limit):
    figure = compare_optimizer_phases(CPU, precision, rounds=2, seed=0)
    assert figure.at_most == limit
    assert figure.spread is not None
    assert "3.3 M" in figure.what
