import ast

from benchmarks.se_darwin.foreign.suite_tests import cut_suite

TESTS = """\
import pytest
import shapes as sh
from shapes.area import half, other
from shapes.far import away

ROWS = [1, 2]


@pytest.mark.parametrize("x", [(2), (4)])
def test_rows(x):
    assert half(x) == x / 2


def test_other():
    assert other(1) == 2


def test_far():
    assert half(away) == 2


class TestHalf:
    def set_up(self):
        return 4

    def test_two(self):
        four = self.set_up()
        assert sh.half(four) == 2
        assert half(ROWS[1]) == 1

    def test_strange(self):
        assert other(2) == 3
"""


def test_the_tests_of_a_function_are_cut_out_check_by_check() -> None:
    suite = cut_suite(TESTS, "shapes", "area", {"half", "other"}, "half")

    assert suite is not None
    assert len(suite.checks) == 4
    assert suite.used == {"half"}
    assert suite.module([1, 3]) == (
        "import pytest\nfrom program import half\nROWS = [1, 2]\n\n"
        "class TestHalf:\n\n    def set_up(self):\n        return 4\n\n    def test_two(self):\n"
        "        four = self.set_up()\n        assert half(ROWS[1]) == 1\n\n"
        "@pytest.mark.parametrize('x', [4])\ndef test_rows(x):\n    assert half(x) == x / 2\n"
    )


def test_each_check_can_be_a_test_of_its_own() -> None:
    suite = cut_suite(TESTS, "shapes", "area", {"half", "other"}, "half")

    assert suite is not None
    tree = ast.parse(suite.module(range(4), separate=True))
    names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert names == {"test_rows__0", "test_rows__1", "set_up", "test_two__2", "test_two__3"}


def test_a_function_without_tests_has_no_suite() -> None:
    assert cut_suite(TESTS, "shapes", "area", {"half"}, "quarter") is None
