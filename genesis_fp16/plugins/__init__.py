"""Plugins: found by their metadata, probed in a child process, loaded where their code runs.

`discovery` reads metadata only; `probe` and `loading` run plugin code; `commands` are subcommands.
"""

from genesis_fp16.system.own_distribution import own_distribution_first

own_distribution_first()

from genesis_fp16.plugins.discovery import (
    ShadowedPackageError,
    UnknownAgentError,
    agent_entry_points,
    check_not_shadowed,
    entry_point_of,
)
from genesis_fp16.plugins.loading import PluginRefusedError, load_agent, validate_settings

__all__ = [
    "PluginRefusedError",
    "ShadowedPackageError",
    "UnknownAgentError",
    "agent_entry_points",
    "check_not_shadowed",
    "entry_point_of",
    "load_agent",
    "validate_settings",
]
