"""Comparison with other trainers; skipped where they are not installed."""

import sys

import pytest
import torch
from torch.nn import functional

from benchmarks.measuring.not_run import NotRunError
from benchmarks.measuring.observe import effective_precision
from benchmarks.step import loops, peers
from benchmarks.step.models import SIZES, build_batches, build_model

CPU = torch.device("cpu")
INSTALL = "not installed: pip install --constraint constraints.txt --editable '.[peers]'"
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the peers
SLOW = pytest.mark.process  # lightning takes a second to import
FABRIC = pytest.param("fabric", marks=SLOW)


@pytest.mark.parametrize("name", [FABRIC, "accelerate"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_peers_train_as_the_textbook_does(start, train, name, precision):
    pytest.importorskip({"fabric": "lightning"}.get(name, name), reason=INSTALL)
    expected = train(start(loops.textbook, precision))
    loop = start(getattr(peers, name), precision)
    torch.testing.assert_close(train(loop), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [FABRIC, "accelerate"])
def test_peers_clip_as_the_textbook_does(start, train, name, monkeypatch):
    pytest.importorskip({"fabric": "lightning"}.get(name, name), reason=INSTALL)
    for module in (loops, peers):
        monkeypatch.setattr(module, "MAX_NORM", 1e-6)
    expected = train(start(loops.textbook, "fp32"))
    loop = start(getattr(peers, name), "fp32")
    torch.testing.assert_close(train(loop), expected, rtol=1e-4, atol=2e-5)


def test_accelerate_keeps_its_precision_beside_another(start, train):
    """Its state is global; `enter` restores it."""
    pytest.importorskip("accelerate", reason=INSTALL)
    half = start(peers.accelerate, "bf16")
    full = start(peers.accelerate, "fp32")
    assert effective_precision(lambda: train(half, steps=1), CPU) == "bf16"
    assert effective_precision(lambda: train(full, steps=1), CPU) == "fp32"
    half.enter()
    from accelerate.state import AcceleratorState

    assert AcceleratorState().mixed_precision == "bf16"


def test_accelerate_on_a_cpu_computes_fp32_instead_of_fp16(start, train):
    pytest.importorskip("accelerate", reason=INSTALL)
    loop = start(peers.accelerate, "fp16")
    assert effective_precision(lambda: train(loop, steps=1), CPU) == "fp32"


@SLOW
def test_fabric_runs_fp16_unfused_and_notes_it(start, train):
    pytest.importorskip("lightning", reason=INSTALL)
    loop = start(peers.fabric, "fp16")
    assert effective_precision(lambda: train(loop, steps=1), CPU) == "fp16"
    assert "not fused" in loop.note


@SLOW
def test_fabric_refuses_what_the_note_says(start):
    """If Fabric ever clips with a fused optimizer, the comparison must use one."""
    pytest.importorskip("lightning", reason=INSTALL)
    from lightning.fabric import Fabric
    from lightning.fabric.plugins import MixedPrecision

    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision("16-mixed", "cpu")])
    raw = build_model(SIZES["tiny"], CPU, seed=0)
    model, optimizer = fabric.setup(raw, loops.adamw(raw, fused=True))
    batch = build_batches(SIZES["tiny"], CPU, seed=0)[0]
    fabric.backward(functional.mse_loss(model(batch.x), batch.y))
    with pytest.raises(NotImplementedError):
        fabric.clip_gradients(model, optimizer, max_norm=1.0)


@pytest.mark.parametrize(
    ("name", "module"),
    [pytest.param("fabric", "lightning.fabric", marks=SLOW), ("accelerate", "accelerate")],
)
def test_a_missing_peer_gives_a_reason(start, monkeypatch, name, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotRunError, match="pip install"):
        start(getattr(peers, name), "fp32")
