"""Parts of a job: networks with optimizers and losses of their own, as in actor-critics."""

from __future__ import annotations

import math
import re
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Parameter
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from infrastructure.agent_contract.training_job import Batch, Forward

MOST_PARTS = 8
"""Parts of one job, at most: each is a label of metrics."""

PART_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""What a part may be called."""

_PREFIX = "part:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Some parameters of a job's model, with the optimizer and the loss that train them.

    The parts of a job share its model. For every batch they take their steps in the declared
    order, each with a loss scale of its own; all of them change precision together.

    Attributes:
        name: Lower-case letters, digits and hyphens, at most 32; a label of metrics.
        trains: What the part trains: qualified names of modules and parameters of the model. No
            other part may train the same.
        optimizer: Function that builds the optimizer from those parameters.
        loss: Function from forward, batch and what earlier parts have computed in this step, to a
            scalar, shape ``[]``, float32. It may run all of the model; gradients of what the part
            does not train are not used. Tensors that it puts into the third argument are detached
            and given to later parts.
        every: The part takes a step for the first batch and for each one so many batches later.
        scheduler: Function that builds a learning-rate scheduler, advanced by each step of the
            part, skipped or not.
        max_grad_norm: Largest norm of the part's gradient; None for the trainer's, 0 for none.
        loss_scale: Initial loss scale, raised to the trainer's floor if that is higher; None for
            the trainer's.

    Raises:
        ValueError: A value is outside its range.
    """

    name: str
    trains: Sequence[str]
    optimizer: Callable[[Iterable[Parameter]], Optimizer]
    loss: Callable[[Forward, Batch, MutableMapping[str, Tensor]], Tensor]
    every: int = 1
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
    max_grad_norm: float | None = None
    loss_scale: float | None = None

    def __post_init__(self) -> None:
        if not PART_NAME.fullmatch(self.name):
            raise ValueError(
                f"a part is called {self.name!r}: use lower-case letters, digits and hyphens, at "
                "most 32, beginning with a letter"
            )
        if isinstance(self.trains, str) or not self.trains:
            raise ValueError(
                f"trains of part {self.name!r} must be a list of names of modules or parameters, "
                f"such as ['actor'], got {self.trains!r}"
            )
        if not _is_count(self.every):
            raise ValueError(
                f"every of part {self.name!r} must be a whole number, at least 1, got "
                f"{self.every!r}"
            )
        clip, scale = self.max_grad_norm, self.loss_scale
        if clip is not None and not (_is_number(clip) and 0 <= clip < math.inf):
            raise ValueError(
                f"max_grad_norm of part {self.name!r} must be finite, and 0 (no clipping) or more, "
                f"got {clip!r}"
            )
        if scale is not None and not (_is_number(scale) and 0 < scale <= 2**64):
            raise ValueError(
                f"loss_scale of part {self.name!r} must be above 0, at most 2**64, got {scale!r}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """A module that follows another one: a target network.

    The trainer makes it equal to its source before the first step. After each applied step, or each
    *every*-th one, of the part that trains the source it becomes ``(1 - tau) target + tau source``
    in float32 (Lillicrap et al. 2016, "Continuous control with deep reinforcement learning"), and
    its buffers become those of the source. A skipped step leaves it as it is and does not count.

    Attributes:
        module: Qualified name of the module; no part trains it.
        source: Qualified name of the module to follow, of the same structure.
        tau: Above 0; 1 copies the source (a hard target).
        every: Applied steps of the source's part between two updates.

    Raises:
        ValueError: A value is outside its range.
    """

    module: str
    source: str
    tau: float
    every: int = 1

    def __post_init__(self) -> None:
        if not (_is_number(self.tau) and 0 < self.tau <= 1 and _is_count(self.every)):
            raise ValueError(
                f"target {self.module!r} needs tau above 0, at most 1, and a whole number of at "
                f"least 1 for every; got {self.tau!r} and {self.every!r}"
            )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


class NotComputedError(KeyError):
    """A part's loss reads what earlier parts do not compute in every step of that part.

    Args:
        part: Name of the part that reads.
        name: What it reads.
        remedy: What to change.
    """

    def __init__(self, part: str, name: str, remedy: str) -> None:
        super().__init__(f"the loss of part {part!r} reads {name!r}: {remedy}")

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError shows its argument in quotes


class Computed(MutableMapping[str, "Tensor"]):
    """What the losses of one step hand on to the losses of later parts.

    Tensors are detached: a part trains its own parameters only, and the graph of an earlier part
    is gone after its step.

    Attributes:
        part: The part whose loss is being computed.
    """

    def __init__(self, part: Part) -> None:
        self.part = part
        self._tensors: dict[str, tuple[Part, Tensor]] = {}

    def __getitem__(self, name: str) -> Tensor:
        """The tensor *name*.

        Raises:
            NotComputedError: No earlier part has computed it, or one that steps less often.
        """
        if name not in self._tensors:
            known = ", ".join(map(repr, self)) or "nothing"
            raise NotComputedError(
                self.part.name, name, f"earlier parts have computed {known}; change their order"
            )
        writer, tensor = self._tensors[name]
        if self.part.every % writer.every:
            raise NotComputedError(
                self.part.name,
                name,
                f"part {writer.name!r} computes it for every {writer.every}. batch only, and "
                f"{self.part.name!r} needs it for every {self.part.every}.; change one of the two",
            )
        return tensor

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        """Give *tensor*, detached, to later parts.

        Raises:
            TypeError: It is not a tensor.
        """
        if not hasattr(tensor, "detach"):
            raise TypeError(
                f"part {self.part.name!r} hands on {name!r}, a {type(tensor).__name__}: hand on "
                "tensors, each by a name"
            )
        self._tensors[name] = self.part, tensor.detach()

    def __delitem__(self, name: str) -> None:
        del self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


@dataclass(frozen=True, slots=True)
class JointLoss:
    """The sum of the losses of *parts*, for what measures a job as a whole.

    Attributes:
        precisions: Parts that see the model in another precision than the others, with its name:
            ``fp32``, ``fp16`` or ``bf16``.
        only: Part whose loss alone is returned, after those before it; empty for the sum.
    """

    parts: Sequence[Part]
    precisions: Mapping[str, str] = field(default_factory=dict)
    only: str = ""

    def __call__(self, forward: Forward, batch: Batch) -> Tensor:
        """Compute the losses in order; float32 ``[]``.

        Raises:
            ValueError: No part is called *only*.
        """
        under = getattr(forward, "under", lambda _name: forward)
        seen = {name: under(name) for name in set(self.precisions.values())}
        computed, losses = Computed(self.parts[0]), []
        for part in self.parts:
            computed.part = part
            changed = self.precisions.get(part.name)
            losses.append(part.loss(seen[changed] if changed else forward, batch, computed))
            if part.name == self.only:
                return losses[-1]
        if self.only:
            raise ValueError(f"the job has no part {self.only!r}")
        return sum(losses[1:], start=losses[0])


def part_place(name: str) -> str:
    """What ``keep_fp32`` calls the part *name*."""
    return f"{_PREFIX}{name}"


def parts_among(names: Iterable[str], parts: Iterable[Part]) -> tuple[str, ...]:
    """Those of *parts*, by name, that *names*, as of ``keep_fp32``, hold."""
    known = {part_place(part.name): part.name for part in parts}
    return tuple(known[name] for name in names if name in known)


def modules_among(names: Iterable[str], parts: Iterable[Part]) -> tuple[str, ...]:
    """The others of *names*, which are modules or patterns."""
    known = {part_place(part.name) for part in parts}
    return tuple(name for name in names if name not in known)


def check_parts(
    parts: Sequence[Part],
    targets: Sequence[Target],
    keep_fp32: Sequence[str],
    modules: Collection[str] = (),
) -> None:
    """Check what can be checked without the model, but for the names of its *modules*.

    Raises:
        ValueError: Two parts have one name, there are too many, targets without parts, *keep_fp32*
            names a part that there is not, or what it names is a part and a module, too.
    """
    names = [part.name for part in parts]
    places = [name for name in keep_fp32 if name.startswith(_PREFIX)]
    if unknown := [p for p in places if p[len(_PREFIX) :] not in names and p not in modules]:
        known = f"its parts are {', '.join(names)}" if names else "it has none"
        raise ValueError(f"keep_fp32 names {unknown[0]!r}, but of the job: {known}")
    if both := [place for place in places if place[len(_PREFIX) :] in names and place in modules]:
        raise ValueError(
            f"keep_fp32 names {both[0]!r}, which is a part of the job and a module of its model: "
            "give one of them another name"
        )
    if len(set(names)) < len(names):
        raise ValueError(f"the parts of a job need different names, got {', '.join(names)}")
    if len(parts) > MOST_PARTS:
        raise ValueError(f"a job has {MOST_PARTS} parts at most, got {len(parts)}")
    modules = [target.module for target in targets]
    if len(set(modules)) < len(modules):
        raise ValueError(f"a module follows one source only, got targets {', '.join(modules)}")
    if targets and not parts:
        raise ValueError("targets follow what a part trains: give the job parts, too")
