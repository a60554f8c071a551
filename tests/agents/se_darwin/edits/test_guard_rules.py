import pytest

from agents.se_darwin.edits import EditSpace


@pytest.mark.parametrize(
    ("kind", "body", "guarded"),
    [
        ("raise_added", "return a - 1", "if a < 0:\n        raise ValueError\n    return a - 1"),
        ("raise_added", "return a - 1", "if a <= 0:\n        raise ValueError\n    return a - 1"),
        (
            "raise_added",
            "return a - b",
            "if min(a, b) < 0:\n        raise ValueError\n    return a - b",
        ),
        (
            "raise_added",
            "return a - b",
            "if not isinstance(a, int):\n        raise TypeError\n    return a - b",
        ),
        ("raise_added", "return a[0]", "if not a:\n        raise IndexError\n    return a[0]"),
        ("raise_added", "return a", "if a is None:\n        raise TypeError\n    return a"),
        (
            "raise_added",
            "return sum(a)",
            "if any((x < 0 for x in a)):\n        raise ValueError\n    return sum(a)",
        ),
        (
            "raise_added",
            "return [*zip(a, b)]",
            "if len(a) != len(b):\n        raise ValueError\n    return [*zip(a, b)]",
        ),
        (
            "raise_added",
            "c = 1 if a > b else 2\n    return c",
            "if a > b:\n        raise ValueError\n    c = 1 if a > b else 2\n    return c",
        ),
        (
            "raise_added",
            "for c in a:\n        if c == b:\n            return c",
            "for c in a:\n        if c == b:\n            return c\n    raise KeyError",
        ),
        ("raise_added", "return -1", "raise ValueError"),
        (
            "guard_added",
            "c = a.find(b)\n    return c[0]",
            "c = a.find(b)\n    if not c:\n        return None\n    return c[0]",
        ),
        (
            "raise_added",
            "c = a.find(b)\n    return c[0]",
            "c = a.find(b)\n    if not c:\n        raise ValueError\n    return c[0]",
        ),
        (
            "statement_guarded",
            "c = []\n    c.append(a)\n    return c",
            "c = []\n    if a not in c:\n        c.append(a)\n    return c",
        ),
        (
            "statement_guarded",
            "c = 1\n    c += a\n    return c",
            "c = 1\n    if a is not None:\n        c += a\n    return c",
        ),
        (
            "statement_guarded",
            "c = []\n    c = [c, a]\n    return c",
            "c = []\n    if c:\n        c = [c, a]\n    return c",
        ),
    ],
)
def test_a_guard_repairs(kinds_that_repair, kind: str, body: str, guarded: str) -> None:
    frame = "def solve(a, b):\n    "
    assert kind in kinds_that_repair(frame + body, frame + guarded)


def test_guards_return_on_the_third_parameter(kinds_that_repair) -> None:
    frame = "def solve(a, b, c):\n    {}d = a + b + c[0]\n    return d"
    guard = "if not c:\n        return d\n    "
    assert "guard_added" in kinds_that_repair(frame.format(""), frame.format(guard))


MODULE = """
class TooLow(Exception):
    pass

def check(value):
    if value < 0:
        raise TooLow('it is negative')
    limit = 3
    if value > 5:
        raise TooLow(f'above {{limit}}')

def solve(amount):
    {}return amount - 1
"""


def test_guards_raise_what_the_module_raises(kinds_that_repair) -> None:
    guard = "if amount < 0:\n        raise TooLow('it is negative')\n    "
    assert kinds_that_repair(MODULE.format(""), MODULE.format(guard)) == {"raise_added"}


def test_no_guard_raises_with_names_that_the_function_lacks() -> None:
    space = EditSpace(MODULE.format(""), "solve")
    raised = {edit.new for edit in space.edits if edit.kind == "raise_added"}
    assert raised
    assert not [text for text in raised if "above" in text]


def test_annotations_tell_which_parameters_are_numbers() -> None:
    source = "def solve(a: float, b: int):\n    return (a + b) * b"
    made = [edit.new for edit in EditSpace(source, "solve").edits if edit.kind == "raise_added"]
    assert "if min(a, b) < 0: raise ValueError" in made
    bare = source.replace(": float", "").replace(": int", "")
    others = [edit.new for edit in EditSpace(bare, "solve").edits if edit.kind == "raise_added"]
    assert "if min(a, b) < 0: raise ValueError" not in others
