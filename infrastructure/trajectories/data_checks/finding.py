"""What a check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A property of the data that makes a held-out score look too good.

    Attributes:
        kind: ``duplicates`` across groups, ``leak`` of the outcome, or ``drift`` over time.
        fields: Target concerned, and for a leak the input, as ``observation.NAME``; empty for all.
        problem: What was found, with figures, in one clause.
        remedy: What to do, in one clause.
        figures: The figures, by name.
    """

    kind: Literal["duplicates", "leak", "drift"]
    fields: tuple[str, ...] = ()
    problem: str
    remedy: str
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The kind and its fields, such as ``leak of solved in observation.closed``."""
        return f"{self.kind} of {' in '.join(self.fields)}" if self.fields else self.kind

    def __str__(self) -> str:
        return f"{self.problem}; {self.remedy}"
