import pytest

from agents.se_darwin.edits import EditSpace

PROGRAM = """
from math import floor

LIMIT = 3

class Odd(ValueError):
    pass

def double(number):
    return 2 * number

def join(first, second):
    return first + second

class Box:
    size: int
    shape = 'round'

    def __init__(self, width):
        self.width = width

    @property
    def area(self):
        return self.width ** 2

    def grow(self, amount):
        self.width += amount

    def shrink(self, amount):
        try:
            self.width -= amount
        except KeyError:
            raise Odd(amount)

    def solve(self, item):
        count = {}
        self.{}(item)
        return self.{}
"""


def test_the_class_and_the_module_are_collected() -> None:
    module = EditSpace(PROGRAM.format("0", "grow", "width"), "Box.solve")
    scope = module.scope.module
    assert scope.functions == ("double", "floor")
    assert scope.constants == ("LIMIT",)
    assert scope.exception_classes == ("Odd", "KeyError")
    assert scope.exceptions == (), "the function has no variable amount"
    assert set(scope.attributes) == {"size", "shape", "width", "area"}
    assert scope.methods == ("grow", "shrink", "solve")


@pytest.mark.parametrize(
    ("broken", "right", "kind"),
    [
        (("0", "grow", "width"), ("0", "grow", "area"), "attribute"),
        (("0", "grow", "width"), ("0", "shrink", "width"), "attribute"),
        (("0", "grow", "width"), ("LIMIT", "grow", "width"), "value_replaced"),
        (("item", "grow", "width"), ("self.size", "grow", "width"), "value_replaced"),
        (("item", "grow", "width"), ("double(item)", "grow", "width"), "call_added"),
        (("floor(item)", "grow", "width"), ("double(item)", "grow", "width"), "function"),
    ],
)
def test_what_they_offer_repairs(
    kinds_that_repair, broken: tuple[str, ...], right: tuple[str, ...], kind: str
) -> None:
    assert kind in kinds_that_repair(PROGRAM.format(*broken), PROGRAM.format(*right))
