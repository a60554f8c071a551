"""How the roles of an experiment compute: within a region of their role."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from torch.nn import Module

from infrastructure.agent_contract.on_policy_job import RoleTypes
from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.precision_lab.experiment import Region

T = TypeVar("T")


class ModelForward(Protocol):
    """A model of a role; calling it computes in the role's types."""

    @property
    def module(self) -> Module:
        """What is called; its parameters are those of the graph."""

    @property
    def precision(self) -> RoleTypes:
        """Types of the role."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module's ``forward``."""

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """Run the module's method *name*."""


class Kernels(Protocol):
    """Computes what an experiment consists of."""

    def model(self, role: Role) -> ModelForward:
        """The model of *role*; a copy may be made, so keep it while it is needed."""

    def compute(self, role: Role, function: Callable[..., T], *values: Any) -> T:
        """``function(*values)`` as *role* computes outside of its modules."""


class RegionKernels:
    """Computes with the models themselves, each role within its region.

    Args:
        models: Models by role.
        region: Context of each role; never entered again inside itself.
    """

    def __init__(self, models: Mapping[Role, Module], region: Region) -> None:
        self._models, self._region = models, region
        self._inside: Role | None = None

    def model(self, role: Role) -> ModelForward:
        """The model of *role*, called within its region."""
        return _WithinRegion(self._models[role], role, self)

    def compute(self, role: Role, function: Callable[..., T], *values: Any) -> T:
        """``function(*values)`` within the region of *role*."""
        with self.within(role):
            return function(*values)

    @contextmanager
    def within(self, role: Role) -> Iterator[None]:
        """Enter the region of *role*, unless it is entered already."""
        around = self._inside
        if around == role:
            yield
            return
        self._inside = role
        try:
            with self._region(role):
                yield
        finally:
            self._inside = around


class _WithinRegion:
    def __init__(self, module: Module, role: Role, kernels: RegionKernels) -> None:
        self.module, self._role, self._kernels = module, role, kernels
        self.precision: RolePrecision = FP32

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._kernels.within(self._role):
            return self.module(*args, **kwargs)

    def method(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        with self._kernels.within(self._role):
            return getattr(self.module, name)(*args, **kwargs)
