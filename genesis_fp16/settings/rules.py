"""Rules that two settings keep together; what one may be alone, its type says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

INITIAL_LOSS_SCALE = 65536.0  # where FP16_LOSS_SCALE is empty


class Order(NamedTuple):
    """The attribute *lower* must not be above the attribute *upper*."""

    lower: str
    upper: str


ORDERS = (
    Order("fp16_min_loss_scale", "fp16_loss_scale"),
    Order("guard_sustained_ratio", "guard_storm_ratio"),
    Order("guard_cooldown_seconds", "guard_cooldown_limit_seconds"),
)


def contradicted(field: str, value: object, others: Mapping[str, object]) -> tuple[str, str] | None:
    """The first attribute of *others* that *field* contradicts.

    Args:
        field: Attribute of the settings.
        value: What it is to be.
        others: Attributes whose values are known.

    Returns:
        ``above`` or ``below``, and the attribute it must not be so to; None if nothing is wrong.
    """
    known = {**others, field: value}
    if known.get("fp16_loss_scale", 0.0) is None:
        known["fp16_loss_scale"] = INITIAL_LOSS_SCALE
    for order in ORDERS:
        if field in order and known.keys() >= set(order):
            low, high = (known[name] for name in order)
            if isinstance(low, float) and isinstance(high, float) and low > high:
                return ("above", order.upper) if field == order.lower else ("below", order.lower)
    return None
