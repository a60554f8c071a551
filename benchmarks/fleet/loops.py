"""The loops that are compared: one after the other, a fleet, ``torch.vmap``, and bare kernels.

Shapes: F members, B rows, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from benchmarks.fleet.models import Batch, Subject
from infrastructure.fleet import Fleet, FleetMember
from infrastructure.fleet.stacked_layers import Memory, differentiate_layers, run_layers
from infrastructure.training import FP16Trainer, FP16TrainingConfig, Precision

CPU = torch.device("cpu")
_LEARNING_RATE = 1e-3


class Loop(Protocol):
    """Trains all members."""

    def step(self) -> None:
        """Take one step of every member."""


class OneByOne:
    """`FP16Trainer`, one member after the other."""

    def __init__(
        self, subject: Subject, members: int, precision: Precision, device: torch.device = CPU
    ) -> None:
        self._loss = subject.loss
        self.trainers = [_trainer(subject, i, precision, device) for i in range(members)]
        self._batches = _cycles(subject, members, device)

    def step(self) -> None:
        """Take one step of every member."""
        for trainer, batches in zip(self.trainers, self._batches, strict=True):
            trainer.train_batch(next(batches), self._loss)


class InAFleet:
    """The same trainers in a `Fleet`."""

    def __init__(
        self, subject: Subject, members: int, precision: Precision, device: torch.device = CPU
    ) -> None:
        self.trainers = [_trainer(subject, i, precision, device) for i in range(members)]
        self._batches = _cycles(subject, members, device)
        self.fleet = Fleet()
        for i, trainer in enumerate(self.trainers):
            self.fleet.join(str(i), FleetMember(trainer=trainer, loss=subject.loss))

    def step(self) -> None:
        """Take one step of every member.

        Raises:
            RuntimeError: A member failed.
        """
        batches = {str(i): next(each) for i, each in enumerate(self._batches)}
        if failed := self.fleet.step(batches):
            raise RuntimeError(f"not trained together: {failed}")

    def require_together(self) -> None:
        """Check that every member is stepped with the others.

        Raises:
            RuntimeError: A member trains alone.
        """
        if alone := self.fleet.alone:
            raise RuntimeError(f"not trained together: {alone}")


class WithVmap:
    """What one would write with ``torch.func``: perceptrons in FP32 on a CPU, clipped one by one.

    One fused AdamW holds the stacks of all parameters. Nothing checks for overflows, and all
    members share one learning rate and one step count.
    """

    def __init__(self, subject: Subject, members: int) -> None:
        models = [subject.build(i) for i in range(members)]
        skeleton = subject.build(0).to("meta")
        stacks, _ = stack_module_state(models)
        self._stacks = {name: stack.detach().requires_grad_() for name, stack in stacks.items()}
        self._optimizer = torch.optim.AdamW(self._stacks.values(), lr=_LEARNING_RATE, fused=True)
        self._batches = _cycles(subject, members, CPU)

        def run(parameters: dict[str, Tensor], x_BI: Tensor) -> Tensor:
            result: Tensor = functional_call(skeleton, parameters, (x_BI,))
            return result

        self._run = torch.vmap(run)

    @property
    def stacks(self) -> Sequence[Tensor]:
        """Parameters, ``[F, *shape]`` each."""
        return list(self._stacks.values())

    def step(self) -> None:
        """Take one step of every member."""
        batches = [next(each) for each in self._batches]
        x_FBI, y_FBO = (torch.stack([batch[name] for batch in batches]) for name in "xy")
        output_FBO = self._run(self._stacks, x_FBI)
        loss_F = nn.functional.mse_loss(output_FBO, y_FBO, reduction="none").mean((1, 2))
        loss_F.sum().backward()
        gradients = [stack.grad for stack in self._stacks.values() if stack.grad is not None]
        norms = [torch.linalg.vector_norm(each.flatten(1), dim=1) for each in gradients]
        norm_F = torch.linalg.vector_norm(torch.stack(norms), dim=0)
        clip_F = (1.0 / (norm_F + 1e-6)).clamp(max=1.0)
        for each in gradients:
            each.mul_(clip_F.view(-1, *[1] * (each.dim() - 1)))
        self._optimizer.step()
        self._optimizer.zero_grad()


class BareKernels:
    """The kernels of a fleet's step on stacks, and nothing else: perceptrons in FP32 on a CPU.

    What a fleet needs above it is what it does for each member. Nothing is clipped or checked.

    Attributes:
        stacks: Parameters, ``[F, *shape]`` each.
    """

    def __init__(self, subject: Subject, members: int) -> None:
        models = [subject.build(i) for i in range(members)]
        self._layers = list(models[0].children())
        stacks, _ = stack_module_state(models)
        self.stacks = [stack.detach() for stack in stacks.values()]
        self._means, self._squares = (list(map(torch.zeros_like, self.stacks)) for _ in range(2))
        self._steps = [torch.zeros(()) for _ in self.stacks]
        self._batches = _cycles(subject, members, CPU)
        self._memory = Memory()

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of every member."""
        batches = [next(each) for each in self._batches]
        before = self._memory.values
        x_FBI = torch.stack([each["x"] for each in batches], out=before[0] if before else None)
        y_FBO = torch.stack([each["y"] for each in batches])
        output_FBO, saved = run_layers(self._layers, None, x_FBI, self.stacks, self._memory)
        error_FBO = y_FBO.sub_(output_FBO)
        error_FBO.square().mean((1, 2))
        error_FBO.mul_(-2.0 / output_FBO[0].numel())
        gradients = differentiate_layers(
            self._layers, saved, output_FBO.dtype, error_FBO, memory=self._memory
        )
        norms = [torch.linalg.vector_norm(each.flatten(1), dim=1) for each in gradients]
        torch.linalg.vector_norm(torch.stack(norms), dim=0)
        torch._foreach_add_(self._steps, 1.0)
        torch._fused_adamw_(
            self.stacks,
            gradients,
            self._means,
            self._squares,
            [],
            self._steps,
            lr=_LEARNING_RATE,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
            eps=1e-8,
            amsgrad=False,
            maximize=False,
        )


def _trainer(
    subject: Subject, member: int, precision: Precision, device: torch.device
) -> FP16Trainer:
    model = subject.build(member).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, fused=True)
    return FP16Trainer(model, optimizer, FP16TrainingConfig(precision=precision, cpu_half=True))


def _cycles(subject: Subject, members: int, device: torch.device) -> Sequence[Iterator[Batch]]:
    return [
        cycle([{name: each.to(device) for name, each in b.items()} for b in subject.batches(i)])
        for i in range(members)
    ]
