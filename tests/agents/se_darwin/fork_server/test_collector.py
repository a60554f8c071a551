from __future__ import annotations

from agents.se_darwin.sandbox import Sandbox, TestSources
from tests.agents.se_darwin.suites import PROGRAM, passed, prepare


def test_parametrized_tests_run_once_per_set_of_parameters(sandbox: Sandbox) -> None:
    tests = """
import pytest
from mod import solve
@pytest.mark.parametrize("x, y", [(1, 2), pytest.param(2, 9, id="odd")])
@pytest.mark.parametrize("low", [0, 1])
def test_a(x, y, low):
    assert solve(x, low=low) == y
@pytest.mark.skip
def test_b():
    assert solve(1) == 5
"""
    assert sorted(passed(sandbox, tests).values()) == [False, False, True, True]


def test_marked_sets_of_parameters_are_left_out(sandbox: Sandbox) -> None:
    tests = """
import pytest
from mod import solve
@pytest.mark.parametrize("x", argvalues=[1, pytest.param(2, marks=pytest.mark.xfail)])
def test_a(x):
    assert solve(x) == 2
"""
    assert passed(sandbox, tests) == {"test_a[0], line 6": True}


def test_tests_of_unittest_that_are_expected_to_fail_are_left_out(sandbox: Sandbox) -> None:
    tests = """
import unittest
from mod import solve
class Prices(unittest.TestCase):
    def test_a(self):
        self.assertEqual(solve(1), 2)
    @unittest.expectedFailure
    def test_b(self):
        self.assertEqual(solve(1), 9)
@unittest.expectedFailure
class Broken(unittest.TestCase):
    def test_c(self):
        self.assertEqual(solve(1), 9)
@unittest.expectedFailure
def test_d():
    assert solve(1) == 2
"""
    assert passed(sandbox, tests) == {
        "Prices.test_a, line 6": True,
        "test_d, line 16": True,  # pytest ignores it outside a TestCase
    }


def test_each_set_up_gets_what_pytest_gives_it(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def setup_module(module):
    module.HIGH = solve(4)
def setup_function(function):
    function.seen = solve(1)
def teardown_function(given=None):
    assert given.seen == 2
def test_a():
    assert HIGH == 5
    assert test_a.seen == 2
class TestPlain:
    def setup_class(cls=None):
        cls.base = solve(0)
    def setup_method(self, method=None):
        self.name = method.__name__
    def teardown_method(self, method):
        assert method.__name__ == self.name
    def test_b(self):
        assert solve(self.base) == 2
        assert self.name == "test_b"
class TestOwnClass:
    @classmethod
    def setup_class(cls):
        cls.base = solve(0)
    def setup_method(self):
        self.more = 1
    def test_c(self):
        assert solve(self.base + self.more) == 3
"""
    found = passed(sandbox, tests)
    assert len(found) == 5
    assert all(found.values())


def test_only_one_set_up_of_a_module_runs_as_in_pytest(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
made = []
def setUpModule():
    made.append("unittest")
def setup_module():
    made.append("pytest")
def test_a():
    assert solve(1) == 2
    assert made == ["unittest"]
"""
    assert all(passed(sandbox, tests).values())


def test_methods_of_classes_are_tests(sandbox: Sandbox) -> None:
    tests = """
import unittest, pytest, mod
class TestPlain:
    base = 0
    def setup_class(cls):
        cls.base = 5
    def setup_method(self, method):
        self.low = 1 if method.__name__ == "test_a" else 2
    @pytest.fixture
    def more(self):
        return self.base + self.low
    def test_a(self, more):
        assert mod.solve(more) == 7
    @pytest.mark.parametrize("x", [1, 2])
    def test_b(self, x):
        assert mod.solve(x, self.low) == x + 1
    def helper(self):
        return mod.Point(1)
class Prices(unittest.TestCase):
    def setUp(self):
        self.ended = []
        self.addCleanup(self.ended.append, 1)
    def test_a(self):
        self.assertEqual(mod.solve(1), 2)
        self.assertEqual(mod.solve(2), 9)
        with self.assertRaises(mod.WrongError):
            mod.solve(-1)
    @unittest.skip("no")
    def test_b(self):
        self.assertEqual(mod.solve(1), 9)
    def test_c(self):
        self.skipTest("it depends")
        mod.solve(1)
"""
    assert passed(sandbox, tests) == {
        "TestPlain.test_a, line 13": True,
        "TestPlain.test_b[0], line 16": False,  # 1 is below 2
        "TestPlain.test_b[1], line 16": True,
        "Prices.test_a, line 24": True,
        "Prices.test_a, line 25": False,
        "Prices.test_a": True,
        "Prices.test_c": True,
    }


def test_all_tests_fail_whose_set_up_failed(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
class TestSetUp:
    @classmethod
    def setup_class(cls):
        solve(1)
    def test_a(self):
        assert True
    def test_b(self):
        assert True
"""
    candidate = "def solve(x, low=0):\n    import unittest; raise unittest.SkipTest\n"
    assert all(passed(sandbox, tests).values())
    assert not any(passed(sandbox, tests, candidate).values())


def test_fixtures_are_made_for_each_test(sandbox: Sandbox) -> None:
    conftest = """
import mod, pytest
made = []
@pytest.fixture(scope="session")
def start():
    made.append("start")
    return mod.Point(10)
@pytest.fixture
def low():
    return 99
@pytest.fixture(params=[1, pytest.param(2)], ids=["one", "two"])
def number(request):
    return request.param
"""
    tests = """
import pytest
from conftest import made
from helpers.numbers import higher
from mod import solve
torn_down = []
@pytest.fixture
def low(start):
    yield start.x - 10
    torn_down.append(start)
@pytest.fixture(autouse=True, name="ready")
def _ready():
    torn_down.append("ready")
def test_a(number, low):
    assert solve(number, low=low) == higher(number)
def test_b(low):
    assert len(torn_down) == 5
    assert solve(0, low=low) == 1
    assert made == ["start"]
@pytest.mark.slow
@pytest.mark.usefixtures("low")
@pytest.mark.skipif(False, reason="never")
def test_c():
    assert solve(1) == 2
@pytest.mark.skipif(condition=True, reason="always")
def test_d():
    assert solve(1) == 3
def test_e(tmp_path):
    assert solve(1) == 3
def test_g():
    pytest.skip("it depends")
    assert solve(1) == 3
"""
    helper = "from mod import solve\ndef higher(x):\n    return x + 1\n"
    sources = TestSources(tests, (conftest,), {"helpers.numbers": helper})
    suite = prepare(sandbox, sources)
    assert [each.partition(" ")[0] for each in suite.left_out] == ["test_e"]
    assert "test_e needs tmp_path" in suite.left_out[0]
    found = passed(sandbox, sources)
    names = {each.partition(",")[0] for each in found}
    assert names == {"test_a[0]", "test_a[1]", "test_b", "test_c", "test_g"}
    assert {name for name, is_passed in found.items() if not is_passed} == set()
    wrong = PROGRAM.replace("return x + 1", "return x + 2")
    failed = {name for name, is_passed in passed(sandbox, sources, wrong).items() if not is_passed}
    assert {name.partition(",")[0] for name in failed} == {
        "test_a[0]",
        "test_a[1]",
        "test_b",
        "test_c",
    }


def test_a_kept_fixture_is_made_for_each_of_its_parameters_and_classes(sandbox: Sandbox) -> None:
    tests = """
import pytest
from mod import solve
@pytest.fixture(scope="module", params=[1, 2])
def low(request):
    return request.param
@pytest.fixture(scope="module")
def high(low):
    return low + 10
def test_a(low, high):
    assert solve(low) == high - 9
class TestOne:
    @pytest.fixture(scope="class")
    def number(self):
        return 1
    def test_b(self, number):
        assert solve(number) == 2
class TestTwo:
    @pytest.fixture(scope="class")
    def number(self):
        return 2
    def test_c(self, number):
        assert solve(number) == 3
"""
    assert all(passed(sandbox, tests).values())
