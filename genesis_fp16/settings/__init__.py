"""Declaration of the settings, their source (file and environment), and their reload."""

from genesis_fp16.settings.env_file import ENV_FILE_VARIABLE
from genesis_fp16.settings.library import library_precision
from genesis_fp16.settings.settings import (
    AGENTS_PREFIX,
    DEFAULT_ENV_FILE,
    VARIABLES,
    AgentSettings,
    Settings,
    variable_name,
)
from genesis_fp16.settings.source import SettingsError, load_settings
from infrastructure.options.setting_types import hot_fields

__all__ = [
    "AGENTS_PREFIX",
    "DEFAULT_ENV_FILE",
    "ENV_FILE_VARIABLE",
    "VARIABLES",
    "AgentSettings",
    "Settings",
    "SettingsError",
    "hot_fields",
    "library_precision",
    "load_settings",
    "variable_name",
]
