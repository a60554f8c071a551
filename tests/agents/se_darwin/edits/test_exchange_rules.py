import pytest

from agents.se_darwin.edits import EditSpace


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        ("lookup", "return a[b]", "return a.get(b)"),
        ("lookup", "return a[b]", "return a.get(b, 0)"),
        ("lookup", "return a.get(b, 0)", "return a[b]"),
        ("in_place", "a.sort(key=b)\n    return a", "a = sorted(a, key=b)\n    return a"),
        ("in_place", "sorted(a, key=b)\n    return a", "a.sort(key=b)\n    return a"),
        ("in_place", "c = a.sort()\n    return c", "c = sorted(a)\n    return c"),
        ("in_place", "a.reverse()\n    return a", "a = a[::-1]\n    return a"),
        ("in_place", "a.append(b)\n    return a", "a = a + [b]\n    return a"),
        ("in_place", "a.strip()\n    return a", "a = a.strip()\n    return a"),
        ("in_place", "a += b\n    return a", "a = a + b\n    return a"),
        (
            "return_kind",
            "for c in a:\n        return solve(c, b)",
            "for c in a:\n        found = solve(c, b)\n        if found is not None:\n"
            "            return found",
        ),
        (
            "return_kind",
            "for found in a:\n        return solve(found, b)",
            "for found in a:\n        found_ = solve(found, b)\n        if found_:\n"
            "            return found_",
        ),
        (
            "return_kind",
            "for c in a:\n        return c > b\n    return True",
            "for c in a:\n        if not c > b:\n            return False\n    return True",
        ),
        ("exception", "raise ValueError(a)", "raise TypeError(a)"),
        ("exception", "raise KeyError", "raise IndexError"),
        *(
            (
                "exception",
                f"try:\n        a()\n    except {old}:\n        {end}\n    return b",
                f"try:\n        a()\n    except {new}:\n        {other}\n    return b",
            )
            for old, new, end, other in (
                ("KeyError", "IndexError", "pass", "pass"),
                ("KeyError", "(KeyError, IndexError)", "pass", "pass"),
                ("(KeyError, OSError)", "(KeyError, OSError, TypeError)", "pass", "pass"),
                ("OSError", "OSError", "pass", "raise"),
                ("OSError", "OSError", "raise", "return b"),
                ("OSError", "OSError", "return None", "pass"),
            )
        ),
        (
            "exception",
            "c = int(a)\n    return c",
            "try:\n        c = int(a)\n    except ValueError:\n        return None\n    return c",
        ),
        (
            "exception",
            "for c in a:\n        b += 1 / c\n    return b",
            "for c in a:\n        try:\n            b += 1 / c\n"
            "        except ZeroDivisionError:\n            continue\n    return b",
        ),
        ("method", "return a.lstrip(b)", "return a.removeprefix(b)"),
        ("method", "return a.isdigit()", "return a.isnumeric()"),
        ("method", "return a.split('x')", "return a.rsplit('x')"),
        ("argument_added", "return a.split()", "return a.split(' ')"),
        ("argument_removed", "return a.split(' ')", "return a.split()"),
        ("function", "return int(a)", "return round(a)"),
        (
            "update_added",
            "for c in a:\n        b[c] = 1\n        c()\n    return b",
            "for c in a:\n        b[c] = 1\n        c()\n        b[c] += 1\n    return b",
        ),
        (
            "update_added",
            "d = {}\n    for c in a:\n        if d[c]:\n            c()\n    return d",
            "d = {}\n    for c in a:\n        if d[c]:\n            c()\n            d[c] = a"
            "\n    return d",
        ),
        (
            "update_added",
            "d = 0\n    for c in a:\n        print(c)\n    return d",
            "d = 0\n    for c in a:\n        print(c)\n        d += c\n    return d",
        ),
        ("container", "c = 0\n    return c + a[0]", "c = a[0]\n    return c + a[0]"),
        ("container", "c = 0\n    return c", "c = float('-inf')\n    return c"),
        ("container", "c, d = (0, a)\n    return c", "c, d = ([], a)\n    return c"),
        (
            "container",
            "c = [[0] * a] * b\n    return c",
            "c = [[0] * a for _ in range(b)]\n    return c",
        ),
        (
            "call_added",
            "for c in a:\n        a[c] = b",
            "for c in range(len(a)):\n        a[c] = b",
        ),
        ("call_removed", "for c in range(len(a)):\n        b(c)", "for c in a:\n        b(c)"),
        (
            "offset",
            "for c in range(len(a)):\n        b(c)",
            "for c in range(len(a) - 1):\n        b(c)",
        ),
        ("call_added", "for c in a:\n        b(c)", "for c in list(a):\n        b(c)"),
        ("call_added", "for c, d in a:\n        b(c)", "for c, d in enumerate(a):\n        b(c)"),
        ("branch_kind", "while a:\n        a = b(a)", "if a:\n        a = b(a)"),
    ],
)
def test_the_other_way_repairs(kinds_that_repair, kind: str, broken: str, right: str) -> None:
    frame = "def solve(a, b):\n    {}"
    assert kind in kinds_that_repair(frame.format(broken), frame.format(right))


def test_attributes_of_the_class_are_updated(kinds_that_repair) -> None:
    program = (
        "class Box:\n    def __init__(self):\n        self.size = 0\n\n"
        "    def solve(self, items):\n        for item in items:\n            print(item){}"
    )
    update = "\n            self.size += item"
    assert kinds_that_repair(program.format(""), program.format(update)) == {"update_added"}


def test_no_value_is_found_outside_a_loop() -> None:
    space = EditSpace("def solve(a):\n    return a(1)", "solve")
    assert not [edit for edit in space.edits if "found" in edit.new]
