"""JSON that any reader accepts: infinities and NaN are written as text."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def json_text(value: object) -> str:
    """*value* as indented JSON; infinities, NaN and objects unknown to JSON become text."""
    return json.dumps(_finite(value), indent=2, allow_nan=False, default=str)


def _finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
