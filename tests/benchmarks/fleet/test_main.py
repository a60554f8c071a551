"""The benchmark of fleets, with few members and steps."""

from pathlib import Path

import pytest
import torch

from benchmarks.fleet.__main__ import measure, require_equal
from benchmarks.fleet.loops import BareKernels, InAFleet, OneByOne, WithVmap
from benchmarks.fleet.models import subjects
from infrastructure.training import Precision

PLAIN, *_, WORLD = subjects()[:4]


@pytest.mark.process  # trains for a second
@pytest.mark.parametrize("subject", [PLAIN, WORLD])
def test_it_measures_what_gives_the_same_bits(subject):
    gains = measure(subject, 2, Precision.FP32, rounds=2, steps=1)
    own = ["torch.vmap", "bare kernels"] if subject.is_plain else []
    assert [gain.versus for gain in gains] == ["one by one", *own]
    assert all(gain.ratio.median > 0 for gain in gains)


@pytest.mark.process  # starts a process that imports torch
def test_another_checkout_is_measured_in_a_process_of_its_own(tmp_path):
    here = Path(__file__).parents[3]
    gains = measure(WORLD, 2, Precision.FP32, rounds=1, steps=1, other=here)
    assert gains[-1].versus == "one by one in the other checkout"
    assert gains[-1].ratio.median > 0
    with pytest.raises(RuntimeError, match=f"{tmp_path} ended"):
        measure(WORLD, 2, Precision.FP32, rounds=1, steps=1, other=tmp_path)


@pytest.mark.parametrize("kind", [WithVmap, BareKernels])
def test_the_loops_train_the_same_models(kind):
    alone, stacked = OneByOne(PLAIN, 2, Precision.FP32), kind(PLAIN, 2)
    for _ in range(3):
        alone.step()
        stacked.step()
    for i, trainer in enumerate(alone.trainers):
        for stack, parameter in zip(stacked.stacks, trainer.model.parameters(), strict=True):
            torch.testing.assert_close(stack[i], parameter, rtol=1e-3, atol=1e-4)


def test_a_bit_that_differs_is_an_error():
    alone, together = OneByOne(PLAIN, 2, Precision.FP32), InAFleet(PLAIN, 2, Precision.FP32)
    alone.step()
    with pytest.raises(RuntimeError, match="member 0 differs"):
        require_equal(alone, together)
