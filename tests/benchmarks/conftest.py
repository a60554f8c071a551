"""One thread, a set-up of any loop, and steps on the tiny size."""

from collections.abc import Callable, Iterator

import pytest
import torch

from benchmarks.step.loops import Loop, Requested, Setup
from benchmarks.step.models import SIZES, build_batches, build_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def start() -> Callable[..., Loop]:
    """Build a loop on the tiny model."""

    def build(loop: Callable[[Setup], Loop], precision: Requested) -> Loop:
        model = build_model(SIZES["tiny"], CPU, seed=0)
        return loop(Setup(model=model, device=CPU, precision=precision))

    return build


@pytest.fixture
def train() -> Callable[..., torch.Tensor]:
    """Run a loop for some steps; its parameters afterwards, in one row."""

    batches = build_batches(SIZES["tiny"], CPU, seed=1)

    def run(loop: Loop, steps: int = 5) -> torch.Tensor:
        loop.enter()
        for batch in batches[:steps]:
            loop.step(batch)
        return torch.cat([p.detach().flatten().clone() for p in loop.model.parameters()])

    return run
