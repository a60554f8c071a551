"""Workers import torch's compiler only if something compiles; compiling is as torch made it."""

import functools
import subprocess
import sys

import pytest

from infrastructure.torch_internals.compiler_import import _original

SCRIPT = """
import sys
import tempfile
import warnings
from pathlib import Path

import torch
from infrastructure.torch_internals.compiler_import import defer_compiler_import
from infrastructure.training import FP16Trainer, FP16TrainingConfig
from torch.optim import AdamW, Optimizer
from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


defer_compiler_import()
deferred = sys.meta_path[0]._originals
assert Counted.__dict__["__torch_dispatch__"].__wrapped__ in deferred, deferred
model = torch.nn.Linear(2, 2)
optimizer = AdamW(model.parameters(), fused=True)
batch = torch.ones(3, 2)
trainer = FP16Trainer(model, optimizer, FP16TrainingConfig(enabled=False))
trainer.train_batch(batch, lambda forward, batch: forward(batch).square().mean())
with tempfile.TemporaryDirectory() as folder:
    trainer.save_checkpoint(Path(folder) / "checkpoint.pt")
    trainer.load_checkpoint(Path(folder) / "checkpoint.pt")  # as a worker that resumes
for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.RMSprop):  # without fused=True
    other = torch.nn.Linear(2, 2)
    unfused = kind(other.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(unfused, 0.9)
    trainer = FP16Trainer(other, unfused, FP16TrainingConfig(enabled=False))
    before = other.weight.detach().clone()
    trainer.train_batch(batch, lambda forward, batch: forward(batch).square().mean())
    with warnings.catch_warnings(action="error"):
        schedule.step()  # warns unless the optimizer's step counts as called
    assert not torch.equal(other.weight, before)
optimizer.zero_grad()
with Counted() as mode:
    batch + 1
assert mode.operations == 1
assert "torch._dynamo" not in sys.modules, "imported although nothing compiles"

graphs = []


def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward


@torch.compile(backend=backend)
def compiled(batch):
    doubled = model(batch) * 2
    optimizer.zero_grad()  # must not be traced: it splits the graph
    return doubled + 1


assert torch.equal(compiled(batch), model(batch) * 2 + 1)
assert len(graphs) == 2, graphs
assert all(vars(each).get("__dynamo_disable") is not each for each in deferred)
disabled = vars(Optimizer.zero_grad.__wrapped__)["__dynamo_disable"]
assert disabled._torchdynamo_disable
"""


@pytest.mark.process
def test_the_compiler_is_imported_by_what_compiles_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_methods_that_are_wrapped_otherwise_are_left_alone() -> None:
    def method() -> None: ...

    @functools.wraps(method)
    def wrapper() -> None:
        getattr(method, "_other_name", method)()

    assert _original(method) is None
    assert _original(wrapper) is None
    assert _original("no function") is None
