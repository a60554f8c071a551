from __future__ import annotations

import pytest

from agents.se_darwin.certainty.leftovers import count_leftovers


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("return x", 0),
        ("if x:\n        return 1\n    return 2", 0),
        ("_ = x", 0),
        ("return x\n    return 2", 1),
        ("for y in x:\n        break\n        print(y)", 1),
        ("if False:\n        return x", 1),
        ("return x < x", 1),
        ("x = x\n    return x", 1),
        ("y = x\n    return x", 1),
        ("return 1", 1),
        ("y = [z for z in x]\n    return y.pop()", 0),
        ("def inner(y):\n        return x\n    return inner", 1),
    ],
)
def test_what_does_nothing_is_counted(body: str, count: int) -> None:
    assert count_leftovers(f"def solve(x):\n    {body}\n") == count


def test_each_function_has_its_own_names() -> None:
    assert (
        count_leftovers("def solve(x):\n    y = x\n\n\ndef other(x, y):\n    return x + y\n") == 1
    )
