"""Places where half precision can lose something: a role, a module of it, a kind of operation."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from infrastructure.events import Role


class Operation(StrEnum):
    """What is done in half precision."""

    STORAGE = "storage"  # weights and buffers are rounded to the half type
    COMPUTE = "compute"  # matrix products and element-wise operations take and return it
    REDUCTION = "reduction"  # so do operations over a dimension: sums, norms, softmax, losses


class PlaceError(ValueError):
    """A text that names no place; the message names the part that is wrong."""


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """One kind of operation of one module of one role.

    ``str()`` gives ``policy:model.layers.0.mlp:compute``, and `parse` reads it.

    Attributes:
        role: Role of the module.
        module: Qualified name of the module. Empty for what the role computes outside its
            modules, such as a loss or an advantage: ``advantage::reduction``.
        operation: Kind of operation.
    """

    role: Role
    module: str
    operation: Operation

    @classmethod
    def parse(cls, text: str) -> Place:
        """Read ``role:module:operation``.

        Raises:
            PlaceError: *text* has no such form, or its role or operation is unknown.
        """
        role, colon, rest = text.strip().partition(":")
        module, second_colon, operation = rest.rpartition(":")
        if not colon or not second_colon:
            raise PlaceError(
                f"write a place as role:module:operation, such as policy:lm_head:compute, or "
                f"kl::reduction for what a role computes outside its modules; got {text!r}"
            )
        if role not in set(Role):
            raise PlaceError(f"{text!r}: the role must be one of {', '.join(Role)}, got {role!r}")
        if operation not in set(Operation):
            raise PlaceError(
                f"{text!r}: the operation must be one of {', '.join(Operation)}, got {operation!r}"
            )
        return cls(Role(role), module, Operation(operation))

    def __str__(self) -> str:
        return f"{self.role}:{self.module}:{self.operation}"
