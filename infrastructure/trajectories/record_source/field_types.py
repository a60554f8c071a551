"""Proposes the type of a field from its values in a sample."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress

from infrastructure.agent_contract.transition import (
    Box,
    Discrete,
    FieldType,
    FieldValue,
    Text,
)
from infrastructure.trajectories.schema import is_usable, label_of

_MAX_LABELS = 20
_LONGEST_LABEL = 60
_TIMES = re.compile(r"(^|[._])(time|timestamp|date|created|updated)([._]|$)|_at$")
_IDENTITIES = re.compile(r"(^|[._])(id|uuid)$")


def field_type(name: str, values: Sequence[FieldValue]) -> tuple[FieldType | None, str]:
    """The type of a field with *values*, or None and the reason.

    A field that is the same in all records, a time or an identity has none.
    """
    if len({str(value) for value in values}) == 1:
        return None, "it is the same in every record"
    if _TIMES.search(name.casefold()) or _IDENTITIES.search(name.casefold()):
        return None, "it looks like a time or an identity, which no model can learn from"
    return _type_of_values(values)


def _type_of_values(values: Sequence[FieldValue]) -> tuple[FieldType | None, str]:
    if all(isinstance(value, bool) for value in values):
        return Discrete(values=("false", "true")), ""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        numbers = [value for value in values if isinstance(value, int | float)]
        return (Box(), "") if any(map(is_usable, numbers)) else (None, "no number can be used")
    if all(isinstance(value, tuple | list) for value in values):
        return _list_type([value for value in values if isinstance(value, tuple | list)])
    if not all(isinstance(value, str) for value in values):
        return None, "its values are of different types"
    labels = sorted({label_of(value) for value in values})
    if _are_labels(labels) and 5 * len(labels) <= len(values):
        return Discrete(values=tuple(labels)), ""
    return Text(), ""


def doubt_about(kind: FieldType, values: Sequence[FieldValue]) -> str:
    """What is odd about the *values* of a field of that *kind*; empty if nothing is."""
    if isinstance(kind, Box):
        numbers = [value for value in values if isinstance(value, int | float)]
        if odd := sum(not is_usable(number) for number in numbers):
            return (
                f"{odd} of {len(values)} values are not finite, or too large; they count as "
                "missing, and as a target they keep their record out of training"
            )
    if isinstance(kind, Text) and all(_is_number(value) for value in values):
        return "its values are numbers written as text; write numbers to have it as a number"
    return ""


def _is_number(value: FieldValue) -> bool:
    if not isinstance(value, str):
        return False
    with suppress(ValueError):
        return math.isfinite(float(value))
    return False


def _list_type(values: Sequence[Sequence[object]]) -> tuple[FieldType | None, str]:
    if all(isinstance(item, str) for value in values for item in value):
        return Text(), ""
    sizes = {len(value) for value in values}
    if len(sizes) > 1:
        return None, f"its length varies from {min(sizes)} to {max(sizes)}"
    return Box(shape=(sizes.pop(),)), ""


def _are_labels(labels: Sequence[str]) -> bool:
    return len(labels) <= _MAX_LABELS and all(
        len(label) <= _LONGEST_LABEL and label.isprintable() for label in labels
    )
