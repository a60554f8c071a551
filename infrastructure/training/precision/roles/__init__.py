"""Precision by role: the presets, frozen models run under their role's types."""

from infrastructure.events import Role
from infrastructure.events.role_precision import (
    PRESETS,
    RolePrecision,
    RolePrecisionError,
    RolePrecisions,
    find_preset,
    roles_under,
    usable_preset,
)
from infrastructure.training.precision.roles.role_forward import RoleForward
from infrastructure.training.precision.roles.role_resolver import RoleResolver

__all__ = [
    "PRESETS",
    "Role",
    "RoleForward",
    "RolePrecision",
    "RolePrecisionError",
    "RolePrecisions",
    "RoleResolver",
    "find_preset",
    "roles_under",
    "usable_preset",
]
