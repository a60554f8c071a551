"""What a detector has found: a trigger, and the numbers that pulled it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from genesis_fp16.guard.trigger import Trigger


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Attributes:
    trigger: Its name.
    said: What was found, in one sentence with its numbers.
    numbers: The same for machines.
    """

    trigger: Trigger
    said: str
    numbers: Mapping[str, object]
