from __future__ import annotations

import ast

import pytest

from benchmarks.se_darwin.mining.regions import Comparison


@pytest.mark.parametrize(
    ("old", "new", "actions"),
    [
        ("f(x)", "f(x)", []),
        ("f(x)", "f(y)", ["replaced"]),
        ("x", "len(x)", ["wrapped"]),
        ("f(x + 1)", "f(x)", ["unwrapped"]),
        ("a\nb\nc", "a\nc", ["removed"]),
        ("a\nc", "a\nb\nc", ["inserted"]),
        ("a < b", "a <= c", ["replaced", "replaced"]),
        ("a and b", "a and b and c", ["inserted"]),
    ],
)
def test_changes_are_few_and_small(old: str, new: str, actions: list[str]) -> None:
    regions = Comparison().regions(ast.parse(old), ast.parse(new))
    assert [region.action for region in regions] == actions
