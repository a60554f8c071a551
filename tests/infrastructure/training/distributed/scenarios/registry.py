"""The scenarios by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

SCENARIOS: dict[str, Callable[[Path], Any]] = {}


def scenario(function: Callable[[Path], Any]) -> Callable[[Path], Any]:
    SCENARIOS[function.__name__] = function
    return function
