"""Each role computes within its region, which is not entered again inside itself."""

from contextlib import contextmanager

import torch
from torch import nn

from infrastructure.events import Role
from infrastructure.precision_lab.kernels import RegionKernels


def test_calls_and_computations_are_within_the_region_of_their_role():
    entered = []

    @contextmanager
    def region(role):
        entered.append(role)
        yield
        entered.append(f"end of {role}")

    kernels = RegionKernels({Role.VALUE: nn.Linear(2, 1)}, region)
    model = kernels.model(Role.VALUE)
    x = torch.ones(1, 2)
    kernels.compute(Role.VALUE, lambda forward, x: forward(x).sum(), model, x)
    kernels.compute(Role.KL, lambda forward, x: forward(x).sum(), model, x)
    model.method("forward", x)
    assert entered == [
        *("value", "end of value"),
        *("kl", "value", "end of value", "end of kl"),
        *("value", "end of value"),
    ]
