import pytest

from agents.se_darwin.edits import EditSpace

BOX = """
class Box:

    def __init__(self, size):
        self.size = size

    def empty(self):
        return not self.size

    @property
    def area(self):
        return self.size ** 2

    def solve(self, size, word):
        {}
"""


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        ("attribute", "return size", "return self.size"),
        ("attribute", "return self.size", "return size"),
        ("attribute", "return empty()", "return self.empty()"),
        ("attribute", "size = 3", "self.size = 3"),
        ("method_added", "return self.empty", "return self.empty()"),
        ("method_added", "return word.lower", "return word.lower()"),
        ("call_removed", "return self.area()", "return self.area"),
        ("variable", "return wrod", "return word"),
        ("variable", "return x", "return word"),
        ("variable", "return x + x * 2", "return size + size * 2"),
        (
            "variable",
            "for each in list:\n            pass",
            "for each in size:\n            pass",
        ),
        ("update_added", "count += size", "count = 0\n        count += size"),
        ("update_added", "found.append(size)", "found = []\n        found.append(size)"),
        ("update_added", "known[size] = 1", "known = {}\n        known[size] = 1"),
    ],
)
def test_names_get_what_defines_them(kinds_that_repair, kind: str, broken: str, right: str) -> None:
    assert kind in kinds_that_repair(BOX.format(broken), BOX.format(right))


def test_what_is_bound_without_an_assignment_is_known() -> None:
    source = """
import os.path as there
try:
    import fast
except ImportError:
    fast = None

async def later():
    pass

def solve(items, *others, **named):
    global count
    from math import floor
    def inner(item):
        return item
    try:
        count += len(items)
    except TypeError as error:
        return [error, there, fast, later, others, named, floor, inner, solve]
    return missing
"""
    scope = EditSpace(source, "solve").scope
    assert scope.unknown == ("missing",)
    assert scope.unset == {}


def test_names_that_others_define_are_known() -> None:
    source = "def solve(size):\n    return LIMIT + size"
    assert EditSpace(source, "solve").scope.unknown == ("LIMIT",)
    assert EditSpace(source, "solve", defined=["LIMIT"]).scope.unknown == ()
