import pytest

from agents.se_darwin.edits import EditSpace

BOX = """
from dataclasses import dataclass
from datetime import timedelta

@dataclass
class Money:
    cents: int
    currency: str = 'EUR'

def price(item, rate=1, strict=False):
    return item

class Box:

    def __init__(self, currency):
        self.currency = currency
        self.items = []

    def trim(self):
        del self.items[3:]

    def count(self, item, depth, seen):
        return 0

    def solve(self, item, depth, seen, items, strict):
        {}
"""


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        (
            "argument_added",
            "return self.count(item, depth)",
            "return self.count(item, depth, seen)",
        ),
        ("argument_added", "return Money(item)", "return Money(item, self.currency)"),
        ("argument_added", "return price(item)", "return price(item, strict=strict)"),
        (
            "attribute",
            "return price(item, rate=strict)",
            "return price(item, strict=strict)",
        ),
        ("attribute", "return timedelta(seconds=item)", "return timedelta(minutes=item)"),
        ("update_added", "item = 1", "item = 1\n        self.trim()"),
        ("update_added", "return item", "self.trim()\n        return item"),
        ("update_added", "item = 1", "item = 1\n        self.items = items"),
    ],
)
def test_calls_get_what_signatures_ask_for(
    kinds_that_repair, kind: str, broken: str, right: str
) -> None:
    assert kind in kinds_that_repair(BOX.format(broken), BOX.format(right))


@pytest.mark.parametrize("call", ["price(*items)", "price(item, 1, strict=strict)", "item.price()"])
def test_nothing_is_added_to_other_calls(call: str) -> None:
    edits = EditSpace(BOX.format(f"return {call}"), "Box.solve").edits
    assert not [each for each in edits if each.new == "strict strict"]


def test_a_method_in_a_class_of_its_own_calls_nothing_from_others() -> None:
    source = "class Box:\n    def solve(self, x):\n        x = 1\ndef trim():\n    pass"
    edits = EditSpace(source, "Box.solve").edits
    assert not [each for each in edits if "trim" in each.new]
