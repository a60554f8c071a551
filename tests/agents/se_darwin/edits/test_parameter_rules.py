import pytest


@pytest.mark.parametrize(
    ("kind", "broken", "right"),
    [
        (
            "parameter_normalised",
            "(a):\n    a.sort()\n    return a",
            "(a):\n    a = list(a)\n    a.sort()\n    return a",
        ),
        (
            "parameter_normalised",
            "(a):\n    a -= 1\n    return a",
            "(a):\n    a = abs(a)\n    a -= 1\n    return a",
        ),
        (
            "parameter_normalised",
            "(a, b):\n    return b.split('x')",
            "(a, b):\n    b = b.lower()\n    return b.split('x')",
        ),
        (
            "parameter_normalised",
            "(a):\n    a['x'] = 1\n    return a",
            "(a):\n    a = a.copy()\n    a['x'] = 1\n    return a",
        ),
        (
            "default_replaced",
            "(a, b=[]):\n    b.append(a)\n    return b",
            "(a, b=None):\n    if b is None:\n        b = []\n    b.append(a)\n    return b",
        ),
        (
            "default_replaced",
            "(a, *, b=set()):\n    'Doc.'\n    b.add(a)\n    return b",
            "(a, *, b=None):\n    'Doc.'\n    if b is None:\n        b = set()\n    b.add(a)"
            "\n    return b",
        ),
        (
            "default_replaced",
            "(a, b=None):\n    b[a] = 1\n    return b",
            "(a, b=None):\n    if b is None:\n        b = {}\n    b[a] = 1\n    return b",
        ),
    ],
)
def test_parameters_are_prepared(kinds_that_repair, kind: str, broken: str, right: str) -> None:
    assert kind in kinds_that_repair(f"def solve{broken}", f"def solve{right}")
