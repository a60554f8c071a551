"""What to write into a training so that the places found compute in FP32."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from infrastructure.events import Role
from infrastructure.events.role_precision import FP32, RolePrecision
from infrastructure.precision_lab.places import Operation, Place


@dataclass(frozen=True, kw_only=True, slots=True)
class Cure:
    """Settings of a training. They put whole modules or roles in FP32, the culprits among them.

    Attributes:
        keep_fp32: Names of modules by role, as for ``FP16TrainingConfig(keep_fp32=...)``. They and
            the modules inside them compute and are stored in FP32.
        roles: Precision of roles that need another one than before.
    """

    keep_fp32: Mapping[Role, tuple[str, ...]]
    roles: Mapping[Role, RolePrecision]

    def places(self, every: Iterable[Place]) -> list[Place]:
        """Those of *every* place that are in FP32 because their module is kept."""
        return [
            place
            for place in every
            if any(_is_inside(place.module, name) for name in self.keep_fp32.get(place.role, ()))
        ]

    def precisions(self, before: Mapping[Role, RolePrecision]) -> dict[Role, RolePrecision]:
        """Types of each role with the cure."""
        return {**before, **self.roles}

    def with_role(self, role: Role, precision: RolePrecision) -> Cure:
        """The same with *precision* for *role*; in FP32 no module of it need be kept."""
        kept = {other: names for other, names in self.keep_fp32.items() if other is not role}
        return Cure(
            keep_fp32=kept if precision == FP32 else self.keep_fp32,
            roles={**self.roles, role: precision},
        )

    def lines(self) -> list[str]:
        """Settings to paste, one a line."""
        kept = [
            f"keep_fp32={list(names)}  # modules of the role {role}"
            for role, names in self.keep_fp32.items()
        ]
        return kept + [f"{role} = {precision}" for role, precision in self.roles.items()]


def cure_of(
    culprits: Collection[Place],
    precisions: Mapping[Role, RolePrecision],
    models: Collection[Role],
) -> Cure:
    """The smallest change of settings that puts *culprits* in FP32.

    A module is kept in FP32. What a role computes outside of its modules needs ``out`` in FP32, or
    the whole role if it has no model or returns FP32 already.

    Args:
        culprits: Places.
        precisions: Types of each role now.
        models: Roles that have a model.
    """
    names: dict[Role, set[str]] = {}
    roles: dict[Role, RolePrecision] = {}
    for place in sorted(culprits):
        before = precisions[place.role]
        if place.module and roles.get(place.role) != FP32:
            names.setdefault(place.role, set()).add(place.module)
        elif place.role in models and before.out != "fp32" and place.operation != Operation.STORAGE:
            roles.setdefault(place.role, replace(before, out="fp32"))
        else:
            roles[place.role] = FP32
    kept = {role: _outermost(modules) for role, modules in names.items() if roles.get(role) != FP32}
    return Cure(keep_fp32=kept, roles=roles)


def _outermost(names: set[str]) -> tuple[str, ...]:
    inside = {a for a in names for b in names if a != b and _is_inside(a, b)}
    return tuple(sorted(names - inside))


def _is_inside(module: str, name: str) -> bool:
    return module == name or module.startswith(f"{name}.")
