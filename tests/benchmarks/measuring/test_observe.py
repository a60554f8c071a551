import pytest
import torch
from torch import nn

from benchmarks.measuring.observe import count_reads, effective_precision
from benchmarks.step import loops
from benchmarks.step.figures import count_naive_reads
from benchmarks.step.loops import Loop

CPU = torch.device("cpu")


def test_detector_sees_three_reads_a_step_in_the_naive_loop():
    assert count_naive_reads(CPU, seed=0) == 3


@pytest.mark.parametrize("build", [loops.ours, loops.folded, loops.textbook])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_loops_with_a_fused_optimizer_read_nothing(start, train, build, precision):
    loop = start(build, precision)
    train(loop, steps=2)
    assert count_reads(loop.optimizer, lambda: train(loop, steps=8), CPU) == 0


def test_step_counters_on_the_host_are_not_device_reads():
    """AdamW without ``fused`` reads its own counters, which live on the host."""
    model = nn.Linear(4, 4)
    optimizer = loops.adamw(model, fused=False)

    def step(batch: object = None) -> None:
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()

    loop = Loop(step=step, model=model, optimizer=optimizer)
    step()
    assert count_reads(loop.optimizer, step, CPU) == 0
    assert count_reads(loop.optimizer, lambda: bool(model.weight.sum() > 0), CPU) == 1


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("loop", [loops.textbook, loops.folded, loops.ours])
def test_effective_precision_is_that_of_the_products(start, train, loop, precision):
    running = start(loop, precision)
    assert effective_precision(lambda: train(running, steps=1), CPU) == precision


def test_mixed_and_absent_products_are_reported():
    a = torch.ones(2, 2)
    assert effective_precision(lambda: (a @ a, a.half() @ a.half()), CPU) == "fp16+fp32"
    assert effective_precision(lambda: a + a, CPU) == "none"
