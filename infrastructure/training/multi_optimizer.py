"""Several optimizers over different parameters of one model, as one optimizer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any, cast, overload

import torch
from torch import Tensor
from torch.optim import Optimizer


class MultiOptimizer(Optimizer):
    """Steps several optimizers as one, such as Muon for matrices and AdamW for the rest.

    Parameter groups and state are those of the members, in their order, so that a learning-rate
    scheduler, a trainer and a checkpoint work with it as with one optimizer. `FP16Trainer` skips
    a step for all members or for none, and refuses a parameter that two of them hold.

    Args:
        members: Optimizers over different parameters.

    Attributes:
        members: As given.

    Raises:
        ValueError: *members* is empty, or a member wraps another optimizer.
    """

    def __init__(self, *members: Optimizer) -> None:
        if not members:
            raise ValueError("a MultiOptimizer needs optimizers: MultiOptimizer(muon, adamw)")
        for member in members:
            if wrapped := wrapped_optimizer(member):
                raise ValueError(
                    f"{type(member).__name__} wraps {type(wrapped).__name__}, whose state would be "
                    f"missing in checkpoints: wrap the MultiOptimizer in {type(member).__name__}"
                )
        self.members = members
        self.defaults = {}  # each group has the settings of its member
        super().__setstate__({})  # makes the hooks; __init__ would make groups as well

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Parameter groups of all members; add a group to its member."""
        return [group for member in self.members for group in member.param_groups]

    @param_groups.setter
    def param_groups(self, _groups: list[dict[str, Any]]) -> None:
        raise AttributeError("set the param_groups of a member instead")

    @property
    def state(self) -> defaultdict[Tensor, Any]:
        """State of all members by parameter."""
        return cast("defaultdict[Tensor, Any]", _JointState(self.members))

    @state.setter
    def state(self, _state: defaultdict[Tensor, Any]) -> None:
        raise AttributeError("set the state of a member instead")

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise `TypeError`: a group is added to the member that is to update it."""
        kinds, settings = [type(member).__name__ for member in self.members], sorted(param_group)
        raise TypeError(
            f"a group with {', '.join(settings)} may be for each of {', '.join(kinds)}: call "
            "add_param_group() of that optimizer"
        )

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Step every member.

        Args:
            closure: Computes the loss and the gradients, once for all members.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for member in self.members:
            member.step()
        return loss

    def train(self) -> None:
        """Call ``train()`` of the members that have it, such as schedulefree's."""
        for member in self.members:
            if hasattr(member, "train"):
                member.train()

    def eval(self) -> None:
        """Call ``eval()`` of the members that have it, such as schedulefree's."""
        for member in self.members:
            if hasattr(member, "eval"):
                member.eval()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned; hooks on loading are those of the members.

        Raises:
            ValueError: The state has other parameter groups.
        """
        groups = list(state_dict["param_groups"])
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state has {len(groups)} parameter groups where the optimizers have "
                f"{len(self.param_groups)}: load what state_dict() of the same optimizers returned"
            )
        for member in self.members:
            count = len(member.param_groups)
            own, groups = groups[:count], groups[count:]
            numbers = {number for group in own for number in group["params"]}
            state = {n: entry for n, entry in state_dict["state"].items() if n in numbers}
            member.load_state_dict({"state": state, "param_groups": own})

    def __reduce__(self) -> tuple[object, ...]:
        """A copy has copies of the members."""
        return MultiOptimizer, self.members


class _JointState(MutableMapping[Tensor, Any]):
    """The states of several optimizers as one, without a copy."""

    def __init__(self, members: Sequence[Optimizer]) -> None:
        self._members = members

    def _holder(self, parameter: object) -> Optimizer | None:
        return next((member for member in self._members if parameter in member.state), None)

    def __getitem__(self, parameter: Tensor) -> object:
        if (holder := self._holder(parameter)) is None:
            raise KeyError(parameter)
        return holder.state[parameter]

    def __setitem__(self, parameter: Tensor, entry: object) -> None:
        for member in self._members:
            if any(parameter is p for group in member.param_groups for p in group["params"]):
                member.state[parameter] = entry
                return
        raise KeyError(parameter)

    def __delitem__(self, parameter: Tensor) -> None:
        if (holder := self._holder(parameter)) is None:
            raise KeyError(parameter)
        del holder.state[parameter]

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for member in self._members for parameter in member.state)

    def __len__(self) -> int:
        return sum(len(member.state) for member in self._members)


def members_of(optimizer: Optimizer) -> Sequence[Optimizer]:
    """The optimizers that *optimizer* steps: its members, or itself."""
    return optimizer.members if isinstance(optimizer, MultiOptimizer) else (optimizer,)


def wrapped_optimizer(optimizer: Optimizer) -> Optimizer | None:
    """The optimizer that *optimizer* wraps, as Lookahead does; None if it wraps none."""
    values = vars(optimizer).values()
    return next((value for value in values if isinstance(value, Optimizer)), None)
