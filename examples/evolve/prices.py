"""Prices; `total` has two faults that its tests find."""

from dataclasses import dataclass


@dataclass
class Line:
    """A number of equal articles."""

    price: float
    count: int


def total(lines, discount_from=100.0, rate=0.1):
    """Sum of *lines*, with a discount from a certain amount on."""
    amount = 0.0
    for line in lines:
        amount += line.price * line.count  # before the discount
    # the discount holds at the threshold too
    if amount > discount_from:
        amount -= amount * (1 - rate)
    return round(amount, 2)
