"""Static call graph by names."""

from __future__ import annotations

import ast

import pytest

from agents.se_darwin.sandbox.call_graph import names_that_reach, refers_to


def start_of(module: ast.Module) -> ast.stmt:
    [start] = [each for each in module.body if getattr(each, "name", "") == "start"]
    return start


@pytest.mark.parametrize(
    ("module", "reached"),
    [
        ("def start(): goal()", True),
        ("def start(): module.goal()", True),
        ("def start(): other()", False),
        ("def start(): other()\ndef other(): goal()", True),
        ("def start(): other()\nother = lambda: goal()", True),
        ("def start(): Other()\nclass Other:\n    def method(self): goal()", True),
        ("async def other(): goal()\ndef start(): other()", True),
        ("import goal as other\ndef start(): other()", True),
        ("from m import goal as other\ndef start(): other()", True),
        (
            "def other():\n    x = goal()\ndef start():\n    y = x",
            False,
        ),  # different variables named x
        ("def other(): start()\ndef start(): other()", False),
        ("def goal(): start()\ndef start(): pass", False),
    ],
)
def test_a_reference_may_be_indirect(module: str, reached: bool) -> None:
    tree = ast.parse(module)
    assert refers_to(start_of(tree), names_that_reach("goal", [tree])) is reached


def test_modules_are_taken_together() -> None:
    modules = [ast.parse("def start(): other()"), ast.parse("def other(): goal()")]
    start = start_of(modules[0])
    assert refers_to(start, names_that_reach("goal", modules))
    assert not refers_to(start, names_that_reach("goal", modules[:1]))


def test_a_parameter_may_name_a_fixture() -> None:
    module = ast.parse("def start(cart): pass\n@pytest.fixture\ndef cart(): return goal()")
    assert refers_to(start_of(module), names_that_reach("goal", [module]))
