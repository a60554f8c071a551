"""Precision by role: the presets, their rules, and a frozen model run under one of them."""

from infrastructure.events.role_precision import (
    PRESETS,
    Role,
    RolePrecision,
    RolePrecisionError,
    RolePrecisions,
    default_roles,
    find_preset,
)
from infrastructure.training.precision.roles.role_forward import RoleForward

__all__ = [
    "PRESETS",
    "Role",
    "RoleForward",
    "RolePrecision",
    "RolePrecisionError",
    "RolePrecisions",
    "default_roles",
    "find_preset",
]
