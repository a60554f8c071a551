from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agents.se_darwin.sandbox import (
    Execution,
    Limits,
    ProgramSources,
    PytestSuite,
    PytestSuiteError,
    Sandbox,
    TestSources,
)

PROGRAM = """
from dataclasses import dataclass

@dataclass
class Point:
    x: int

class WrongError(Exception):
    pass

def twice(x):
    return 2 * solve(x)

def solve(x, low=0):
    if x == "point":
        return Point(low)
    if x < low:
        raise WrongError("below", low)
    return x + 1
"""
ONE = "def test_a(): mod.solve(1)"
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=5.0)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(modules=["pytest"], packages=[Path(pytest.__file__).parents[1]]) as sandbox:
        yield sandbox


def prepare(
    sandbox: Sandbox, tests: str | TestSources, program: str = PROGRAM, module: str = "mod"
) -> PytestSuite:
    sources = TestSources(tests) if isinstance(tests, str) else tests
    suite = PytestSuite.prepare(sources, ProgramSources(program, module), "solve")
    return sandbox.collect(suite, function="solve", limits=LIMITS)


def run(
    sandbox: Sandbox, suite: PytestSuite, source: str = PROGRAM, *, coverage: bool = False
) -> Execution:
    [execution] = sandbox.run([source], suite, function="solve", limits=LIMITS, coverage=coverage)
    return execution


def passed(sandbox: Sandbox, tests: str | TestSources, source: str = PROGRAM) -> dict[str, bool]:
    suite = prepare(sandbox, tests)
    outputs = run(sandbox, suite, source).outputs
    pairs = zip(suite.cases(), outputs, strict=True)
    return {str(case.arguments[0]): case.passes(output) for case, output in pairs}


@pytest.mark.parametrize("module", ["mod", "tests.mod"])
def test_a_package_of_the_tests_may_be_named_tests(sandbox: Sandbox, module: str) -> None:
    sources = TestSources(
        f"from {module} import solve\n"
        "from tests.numbers import ONE\n"
        "def test_a(): assert solve(ONE) == 2",
        helpers={"tests.numbers": "ONE = 1"},
    )
    suite = prepare(sandbox, sources, module=module)
    assert [
        case.passes(each)
        for case, each in zip(suite.cases(), run(sandbox, suite).outputs, strict=True)
    ] == [True]


def test_the_first_calls_of_a_check_are_recorded(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    for x in range(70):
        assert solve(x) == x + 1
    assert solve(8, low=3) == 9
"""
    calls = sandbox.record(PROGRAM, prepare(sandbox, tests), function="solve", limits=LIMITS)
    assert [(number, call["values"]["roots"]) for number, call in calls] == [
        *((0, [x]) for x in range(50)),
        (1, [8, 3]),
    ]


def test_every_assert_is_a_check_and_the_test_continues(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 3, "wrong"
    for x in (1, 2):
        assert solve(x) == x + 1
    if solve(0):
        assert solve(2) == 4
    else:
        assert solve(3) == 4
    n = 3
    while n > 2:
        n -= 1
        assert solve(n) != 4
def test_b():
    assert solve(1) == 2 == 3
    assert solve(1)
"""
    assert passed(sandbox, tests) == {
        "test_a, line 4": False,
        "test_a, line 6": True,
        "test_a, line 8": False,
        "test_a, line 10": True,
        "test_a, line 14": True,
        "test_a": True,
        "test_b, line 16": False,
        "test_b, line 17": True,
    }


def test_failures_that_a_test_catches_itself_are_not_checks(sandbox: Sandbox) -> None:
    tests = """
import pytest
import mod
def test_raises():
    with pytest.raises(mod.WrongError, match="below"):
        assert mod.solve(-1)
    try:
        assert mod.solve(1) == 5
    except AssertionError:
        pass
    assert mod.solve(0.5) == pytest.approx(1.5)
"""
    assert passed(sandbox, tests) == {"test_raises, line 11": True}


def test_a_test_that_stops_early_fails_what_it_did_not_reach(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    solve(-5)
    assert solve(2) == 3
"""
    suite = prepare(sandbox, tests)
    reached, missed = run(sandbox, suite, coverage=True).outputs
    assert reached is not None
    assert missed is not None
    assert (reached.text, missed.kind, missed.text) == ("passed", "raise", "WrongError")
    assert reached.lines & missed.lines  # both run `if x < low`
    assert reached.lines - missed.lines, "each has its own"


def test_a_failed_check_reports_actual_and_expected_value(sandbox: Sandbox) -> None:
    suite = prepare(sandbox, "import mod\ndef test_a():\n    assert mod.solve(4) == 6")
    [output] = run(sandbox, suite).outputs
    assert output is not None
    assert (output.kind, output.text, output.arguments) == ("value", "5", "6")


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


def test_the_program_is_there_with_its_classes_and_other_functions(sandbox: Sandbox) -> None:
    tests = """
from package.mod import Point, solve, twice
def test_a():
    assert twice(2) == 6
    assert solve("point", 4) == Point(4)
"""
    wrong = PROGRAM.replace("x + 1", "x + 2")
    assert list(passed(sandbox, tests).values()) == [True, True]
    assert list(passed(sandbox, tests, wrong).values()) == [False, True]


@pytest.mark.parametrize(
    "line",
    [
        "from package.inner import mod",
        "from package.inner import mod as mod",
        "from . import mod",
        "from .inner import mod",
        "import package.mod as mod",
        "import package.inner.mod; mod = package.inner.mod",
    ],
)
def test_the_program_may_be_imported_as_a_module_of_a_package(sandbox: Sandbox, line: str) -> None:
    tests = f"""
from pathlib import Path
{line}
HERE = Path(__file__).parent
def test_a():
    assert mod.solve(1) == 2
"""
    assert list(passed(sandbox, tests).values()) == [True]


def test_a_standard_function_of_the_programs_name_stays_what_it_is(sandbox: Sandbox) -> None:
    tests = """
import sep
from os import sep as separator
def test_a():
    assert sep.solve(0) == len(separator)
"""
    suite = prepare(sandbox, tests, module="sep")
    [output] = run(sandbox, suite).outputs
    assert output is not None
    assert output.text == "passed"


def test_a_module_that_is_not_there_is_not_found(sandbox: Sandbox) -> None:
    program = "try:\n    import numpy\nexcept ImportError:\n    numpy = 0\n" + PROGRAM
    suite = prepare(sandbox, "import mod\ndef test_a():\n    assert mod.solve(1) == 2", program)
    assert len(suite.checks) == 1


def test_arguments_are_changed_as_the_candidate_changed_them(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
class Box:
    pass
def test_a():
    items, names, seen = [3, 1], {"a": 1}, {1}
    solve(items, names, seen=seen)
    assert (items, names, seen) == ([1, 3], {"b": 2}, {1, 2})
"""
    program = """
def solve(items, names, seen):
    items.sort()
    names.clear()
    names["b"] = 2
    seen.add(2)
"""
    suite = prepare(sandbox, tests, program)
    [output] = run(sandbox, suite, program).outputs
    assert output is not None
    assert output.text == "passed"


def test_objects_keep_their_identity(sandbox: Sandbox) -> None:
    tests = """
from mod import NOTHING, solve
def test_a():
    items = [1]
    assert solve(items, [items]) is items
    assert solve(items, []) is NOTHING
def test_b():
    tree = {}
    tree["self"] = tree
    assert solve(tree, [tree])["self"] is tree
def test_c():
    assert solve("cache", ()) is solve("cache", ())
"""
    program = """
NOTHING = object()
known = {}
def solve(wanted, among):
    if wanted == "cache":
        return known.setdefault("x", [])
    return next((each for each in among if each is wanted), NOTHING)
"""
    suite = prepare(sandbox, tests, program)
    outputs = run(sandbox, suite, program).outputs
    assert [output and output.text for output in outputs] == ["passed"] * 4
    copies = program.replace("(each for each in among if", "(list(each) for each in among if")
    outputs = run(sandbox, suite, copies).outputs
    assert outputs[0] is not None
    assert outputs[0].text != "passed", "an equal list is another list"


def test_deep_values_and_defaultdicts_pass(sandbox: Sandbox) -> None:
    tests = """
from collections import defaultdict
from mod import solve
def test_a():
    deep = []
    for _ in range(500):
        deep = [deep]
    assert solve(deep) == 500
def test_b():
    counts = solve(["a", "b", "a"])
    assert counts["a"] == 2
    assert counts["nothing"] == 0
"""
    program = """
from collections import defaultdict
def solve(x):
    if "a" in x:
        counts = defaultdict(int)
        for each in x:
            counts[each] += 1
        return counts
    depth = 0
    while x:
        [x] = x
        depth += 1
    return depth
"""
    suite = prepare(sandbox, tests, program)
    outputs = run(sandbox, suite, program).outputs
    assert [output and output.text for output in outputs] == ["passed"] * 3


def test_a_candidate_cannot_replace_the_equality_of_the_programs_classes(sandbox: Sandbox) -> None:
    tests = "import mod\ndef test_a():\n    assert mod.solve('point', 1) == mod.Point(9)"
    lenient = PROGRAM.replace(
        "    x: int\n", "    x: int\n    def __eq__(self, other):\n        return True\n"
    )
    assert passed(sandbox, tests, lenient) == {"test_a, line 3": False}


def test_tests_of_other_things_are_left_out(sandbox: Sandbox) -> None:
    tests = """
import mod
from mod import Point, twice as double
VALUES = [1, 2]
def check(value):
    assert double(value) == 2 * value + 2
def test_point():
    while Point(1): pass
def test_a():
    for value in VALUES:
        check(value)
"""
    assert passed(sandbox, tests) == {"test_a": True}


def first_outcome(sandbox: Sandbox, test: str, source: str = PROGRAM) -> tuple[str, str] | None:
    """Kind and text of a test's first check; None if it did not finish."""
    suite = prepare(sandbox, f"import mod\ndef test_a():\n    {test}")
    output = run(sandbox, suite, source).outputs[0]
    return (output.kind, output.text) if output is not None else None


@pytest.mark.parametrize(
    ("test", "kind", "text"),
    [
        (
            "assert mod.solve(1) == len",
            "raise",
            "AssertionError",
        ),  # a function has no canonical text
        ("assert mod.solve(len) == 1", "strange", "an argument cannot be sent"),
        ("assert mod.solve.cache_clear()", "strange", "a candidate can only be called"),
        ("for x in (1, 2): assert mod.solve(x) == 9", "value", "2"),  # the first
        ("assert mod.solve(-1)", "raise", "WrongError"),
        ("mod.solve(1); raise SystemExit", "raise", "SystemExit"),
    ],
)
def test_a_failed_check_reports_its_cause(
    sandbox: Sandbox, test: str, kind: str, text: str
) -> None:
    found = first_outcome(sandbox, test)
    assert found is not None
    assert found[0] == kind
    assert found[1].startswith(text)


@pytest.mark.parametrize("body", ["return len", "x.append(len)"])
def test_a_value_that_is_not_plain_data_is_strange(sandbox: Sandbox, body: str) -> None:
    found = first_outcome(sandbox, "assert mod.solve([1]) == 1", f"def solve(x):\n    {body}")
    assert found is not None
    assert found[0] == "strange"


@pytest.mark.parametrize(
    "source", ["import os\nos._exit(0)", "def solve(x): return 'x' * (5 << 20)"]
)
def test_a_candidate_without_a_readable_answer_is_lost(sandbox: Sandbox, source: str) -> None:
    assert first_outcome(sandbox, "assert len(mod.solve(1)) == 5 << 20", source) is None


def test_no_check_runs_after_the_candidate_is_lost(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
def test_b(never=False):
    assert not never or solve(1)
"""
    leaves = PROGRAM.replace(
        "return x + 1", "x == 2 and __import__('os')._exit(0)\n    return x + 1"
    )
    outputs = run(sandbox, prepare(sandbox, tests), leaves).outputs
    assert [output is not None for output in outputs] == [True, False, False]


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
async def test_f():
    assert solve(1) == 3
def test_g():
    pytest.skip("it depends")
    assert solve(1) == 3
"""
    helper = "from mod import solve\ndef higher(x):\n    return x + 1\n"
    sources = TestSources(tests, (conftest,), {"helpers.numbers": helper})
    suite = prepare(sandbox, sources)
    assert [each.partition(" ")[0] for each in suite.left_out] == ["test_f", "test_e"]
    assert "test_e needs tmp_path" in suite.left_out[1]
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


METHODS = """
from functools import cached_property
class Cart:
    kinds = {}
    def __init__(self, *prices):
        self.prices = list(prices)
    def add(self, price):
        self.prices.append(price)
        return self
    __lshift__ = add
    @property
    def total(self):
        return sum(self.prices)
    @total.setter
    def total(self, value):
        self.prices = [value]
    @staticmethod
    def net(price):
        return price / 2
    @classmethod
    def empty(cls):
        return cls()
    @cached_property
    def largest(self):
        return max(self.prices)
    def __eq__(self, other):
        return self.prices == other.prices
"""
USES = {
    "__init__": "assert Cart(1, 2).prices == [1, 2]",
    "add": "assert (cart := Cart(1)).add(2) is cart; assert (cart << 3).prices == [1, 2, 3]",
    "total": "cart = Cart(1); cart.total = 5; assert cart.total == 5",
    "net": "assert Cart.net(4) == Cart(1).net(4) == 2",
    "empty": "assert type(Cart.empty()) is Cart",
    "__eq__": "assert Cart(1) == Cart(1)",
}


@pytest.mark.parametrize("method", USES)
def test_methods_are_repaired_as_functions_are(sandbox: Sandbox, method: str) -> None:
    def run(source: str) -> list[str | None]:
        tests = f"from mod import Cart\ndef test_a():\n    {USES[method]}\n    Cart(1)"
        function = f"Cart.{method}"
        suite = PytestSuite.prepare(TestSources(tests), ProgramSources(METHODS, "mod"), function)
        suite = sandbox.collect(suite, function=function, limits=LIMITS)
        [execution] = sandbox.run([source], suite, function=function, limits=LIMITS)
        return [output and output.text for output in execution.outputs]

    assert set(run(METHODS)) == {"passed"}
    assert set(run(METHODS + f"\nCart.{method} = lambda *_: 1 / 0")) != {"passed"}


PACKAGE = {
    "shop.__init__": "from . import lines, mod\nfrom .mod import solve\nfrom . import tables",
    "shop.tables": "from .mod import solve\nTABLE, ROW = {'solve': solve}, [solve]",
    "shop.lines": "class Line:\n    def __init__(self, n):\n        self.n = n",
}
IN_PACKAGE = """
from .lines import Line
def solve(line):
    return Line(line.n + 1)
"""


@pytest.mark.parametrize(
    "use",
    [
        "shop.solve(Line(1)).n == 2",
        "shop.tables.TABLE['solve'](Line(1)).n == 2",
        "shop.tables.ROW[0](Line(1)).n == 2",
        "mod.solve(Line(1)).n == 2 and type(mod.solve(Line(1))) is Line",
        "again(Line(1)).n == 2",
    ],
)
def test_a_program_imports_modules_of_its_own(sandbox: Sandbox, use: str) -> None:
    tests = TestSources(
        "import shop\nfrom shop import mod\nfrom shop.lines import Line\n"
        f"from .mod import solve as again\ndef test_a():\n    assert {use}",
        aliases={"lines": "shop.lines"},
    )
    suite = PytestSuite.prepare(tests, ProgramSources(IN_PACKAGE, "shop.mod", PACKAGE), "solve")
    suite = sandbox.collect(suite, function="solve", limits=LIMITS)
    wrong = IN_PACKAGE.replace("+ 1", "- 1")
    right, other = sandbox.run([IN_PACKAGE, wrong], suite, function="solve", limits=LIMITS)
    assert [output and output.text for output in right.outputs] == ["passed"]
    assert [output and output.text for output in other.outputs] != ["passed"]


def test_a_test_without_asserts_reaches_the_function(sandbox: Sandbox) -> None:
    tests = "import pytest\nfrom mod import solve\ndef test_a():\n"
    tests += "    with pytest.raises(TypeError):\n        solve(None)"
    suite = prepare(sandbox, TestSources(tests))
    [execution] = sandbox.run([PROGRAM], suite, function="solve", coverage=True, limits=LIMITS)
    assert [(output.text, bool(output.lines)) for output in execution.outputs if output] == [
        ("passed", True)
    ]


def test_a_method_of_another_kind_is_run_with_its_tests_in_one_process(sandbox: Sandbox) -> None:
    tests = TestSources("from mod import Cart\ndef test_a():\n    assert Cart(1).largest == 1")
    suite = PytestSuite.prepare(tests, ProgramSources(METHODS, "mod"), "Cart.largest")
    suite = sandbox.collect(suite, function="Cart.largest", limits=LIMITS)
    name = "Cart.largest"
    [apart] = sandbox.run([METHODS], suite, function=name, limits=LIMITS)
    [within] = sandbox.screen([METHODS], suite, function=name, limits=LIMITS)
    assert apart.outputs == (None,)
    assert None not in within.outputs


@pytest.mark.parametrize(
    ("keyword", "names"),
    [
        ("", "abc"),
        ("test_a or Rest", "abc"),
        ("TEST_A", "a"),
        ("not a and (test_b or x)", "b"),
        ("nothing", "no test of those that match 'nothing' calls solve"),
        ("a b", "does not select tests"),
        ("f(x)", "does not select tests"),
        ("(" * 500, "does not select tests"),
    ],
)
def test_a_keyword_selects_tests_by_name(sandbox: Sandbox, keyword: str, names: str) -> None:
    tests = "import mod\ndef test_a(): mod.solve(1)\nclass TestRest:\n"
    tests += "".join(f"    def test_{each}(self): mod.solve(1)\n" for each in "bc")
    sources = TestSources(tests, keyword=keyword)
    if len(names) > 3:
        with pytest.raises(PytestSuiteError, match=names):
            prepare(sandbox, sources)
    else:
        found = prepare(sandbox, sources).checks
        assert [each[-1] for each in found] == list(names)


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


def test_a_check_that_is_rightly_not_reached_passes(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    if solve(0) == 5:
        assert solve(1) == 9
"""
    assert passed(sandbox, tests) == {"test_a, line 5": True, "test_a": True}


def test_all_lines_that_run_for_a_check_are_attributed_to_it(sandbox: Sandbox) -> None:
    suite = prepare(
        sandbox, "import mod\ndef test_a():\n    for x in ('point', 1): assert mod.solve(x)"
    )
    output = run(sandbox, suite, coverage=True).outputs[0]
    assert output is not None
    ends = [n for n, line in enumerate(PROGRAM.splitlines(), 1) if "return" in line][-2:]
    assert set(ends) <= output.lines


def test_an_object_is_left_as_the_candidate_left_it(sandbox: Sandbox) -> None:
    program = PROGRAM.replace("    if x < low:", "    del x.x; x.z = 1; return 0\n    if x < low:")
    suite = prepare(
        sandbox,
        """
import mod
def test_a():
    point = mod.Point(3)
    mod.solve(point)
    assert vars(point) == {"z": 1}
""",
    )
    [output] = run(sandbox, suite, program).outputs
    assert output is not None
    assert output.text == "passed"


def test_checks_after_a_hang_do_not_finish(sandbox: Sandbox) -> None:
    tests = """
from mod import solve
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
def test_b():
    assert solve(1) == 2
"""
    hangs = PROGRAM.replace("return x + 1", "while x == 2: pass\n    return x + 1")
    execution = run(sandbox, prepare(sandbox, tests), hangs)
    assert execution.end == "timeout"
    assert [output is not None for output in execution.outputs] == [True, False, False]


ENDLESS = """
def test_a():
    assert solve(1) == 2
    assert solve(2) == 3
    assert solve(3) == 4
def test_b():
    with pytest.raises(ValueError):
        solve(2)
def test_c():
    assert solve(1) == 2
"""


@pytest.mark.parametrize("catches", ["while x == 2: pass", "while x == 2: x = stay(x)"])
def test_an_endless_check_costs_itself_in_the_programs_process(
    sandbox: Sandbox, catches: str
) -> None:
    """Also with coverage, and if the candidate catches the interrupt once."""
    program = PROGRAM.replace("return x + 1", f"{catches}\n    return x + 1")
    program += """
def stay(x):
    try:
        while not caught:
            pass
    except BaseException:
        caught.append(x)
    return x
caught = []
"""
    suite = prepare(sandbox, f"import pytest\nfrom mod import solve\n{ENDLESS}")
    execution = run(sandbox, replace(suite, within=True), program, coverage=True)
    kinds = [output.kind if output else "none" for output in execution.outputs]
    assert kinds == ["value", "endless", "value", "endless", "value"]
    assert execution.hung
    assert execution.end == "exit"
    outputs = [output for output in execution.outputs if output]
    line = 1 + next(n for n, text in enumerate(program.split("\n")) if "while x == 2" in text)
    assert all(line in output.lines for output in outputs)


@pytest.mark.parametrize(
    ("tests", "message"),
    [
        ("def test_a(:", "not Python"),
        ("import mod\0", "not Python"),
        ("def test_a():\n    assert 1", "import the program"),
        (
            "import mod\nopen('x')\ndef test_a(): mod.solve(1)",
            "uses the file x, which the sandbox f",
        ),
        ("import mod", "def test_"),
        ("import mod\ndef test_a():\n    assert mod.Point(1)", "no test calls solve"),
        ("import mod\nclass TestA: pass", "no function `def test_"),
        ("import mod\nasync def test_a(): mod.solve(1)", "test_a is asynchronous"),
        ("import mod\ndef test_a():\n    assert mod.solve(1) == 7\n    yield", "`yield`"),
        ("import mod, pytest\npytestmark = pytest.mark.skip\n" + ONE, "are skipped"),
        ("import mod, pytest\npytestmark = [pytest.mark.skip('no')]\n" + ONE, "are skipped"),
        ("import mod, pytest\n@pytest.mark.skip\n" + ONE, "tests of solve are skipped"),
        (
            "import mod\ndef test_a(tmp_path): mod.solve(1)",
            "needs tmp_path: this sandbox has no files",
        ),
        (
            "import mod\ndef test_a(mocker): mod.solve(1)",
            "needs mocker: only caplog, capsys, monkey",
        ),
        (
            "import mod\n1 / 0\ndef test_a(): mod.solve(1)",
            "importing the program and its tests raised ZeroDivisionError: division by zero$",
        ),
        ("from mod import nothing, solve\ndef test_a(): solve(1)", "cannot import name 'nothing'"),
        ("import mod, sys\nsys.exit(3)\ndef test_a(): mod.solve(1)", "raised SystemExit: 3"),
        ("import mod\nwhile True: pass\n" + ONE, "importing mod.py or its tests takes 5 s or more"),
        ("import mod, os\nos._exit(0)\n" + ONE, "importing mod.py or its tests ends Python"),
        ("import mod, pytest\n@pytest.mark.xfail\ndef test_a(): mod.solve(1)", "are skipped"),
        (
            "import mod, pytest\n@pytest.mark.parametrize('a', [1], indirect=True)\n"
            "def test_a(a): mod.solve(a)",
            "test_a needs a: only",
        ),
    ],
)
def test_tests_that_cannot_be_run_are_refused_by_name(
    sandbox: Sandbox, tests: str, message: str
) -> None:
    with pytest.raises(PytestSuiteError, match=message):
        prepare(sandbox, tests)


SKIPS = ("import pytest; pytest.skip()", "import unittest; raise unittest.SkipTest")


@pytest.mark.parametrize("skip", SKIPS)
def test_a_candidate_cannot_skip_a_test(sandbox: Sandbox, skip: str) -> None:
    tests = """
import pytest, unittest
from mod import solve
def test_a():
    assert solve(1) == 3
def test_b():
    solve(1)
def test_c():
    if solve(1):
        pytest.skip()
    assert solve(1) == 3
"""
    names = ["test_a, line 5", "test_b", "test_c, line 11"]
    candidate = f"def solve(x, low=0):\n    {skip}\n"
    assert passed(sandbox, tests, candidate) == dict.fromkeys(names, False)
    assert passed(sandbox, tests) == dict(zip(names, (False, True, True), strict=True))


def test_fixtures_of_pytest_itself_capture_output_and_undo_changes(sandbox: Sandbox) -> None:
    program = """
import os
LIMIT, LABELS = 1, {"unit": "m"}
class Base:
    size = 1
class Shop(Base):
    @staticmethod
    def rate():
        return 2
def solve(x):
    print("total", x)
    return x * LIMIT * Shop.rate() + Shop.size + int(os.environ.get("SHIFT", 0)), LABELS.get("unit")
"""
    tests = """
import os
import mod
def test_output(capsys):
    mod.solve(3)
    with capsys.disabled():
        mod.solve(4)
    out, err = capsys.readouterr()
    assert out == "total 3\\n"
    assert err == ""
    mod.solve(5)
    assert capsys.readouterr().out == "total 5\\n"
def test_changes(monkeypatch):
    monkeypatch.setattr(mod, "LIMIT", 10)
    monkeypatch.setattr(mod.Shop, "rate", staticmethod(lambda: 3))
    monkeypatch.setattr("mod.Shop.size", 5)
    monkeypatch.setattr(mod, "LIMIT", 20)
    monkeypatch.setitem(mod.LABELS, "unit", "km")
    monkeypatch.setenv("SHIFT", 100)
    assert mod.solve(1) == (165, "km")
    with monkeypatch.context() as inner:
        inner.delitem(mod.LABELS, "unit")
        inner.delattr(mod.Shop, "size")
        inner.delenv("SHIFT")
        assert mod.solve(1) == (61, None)
    assert mod.solve(1) == (165, "km")
def test_undone():
    assert mod.solve(1) == (3, "m")
    assert "size" not in vars(mod.Shop)
def test_missing(monkeypatch):
    mod.solve(1)
    try:
        monkeypatch.setattr(mod, "nothing", 1)
    except AttributeError:
        missing = True
    assert missing
    monkeypatch.setattr(mod, "nothing", 1, raising=False)
    assert mod.nothing == 1
"""
    suite = prepare(sandbox, tests, program)
    assert suite.left_out == ()
    [execution] = sandbox.screen([program], suite, function="solve", limits=LIMITS)
    outcomes = zip(suite.cases(), execution.outputs, strict=True)
    assert [case.arguments[0] for case, output in outcomes if not case.passes(output)] == []
    wrong = program.replace('"total", x', '"total:", x')
    [execution] = sandbox.screen([wrong], suite, function="solve", limits=LIMITS)
    outcomes = zip(suite.cases(), execution.outputs, strict=True)
    failed = [str(case.arguments[0]) for case, output in outcomes if not case.passes(output)]
    assert {name.partition(",")[0] for name in failed} == {"test_output"}


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


def test_marked_sets_of_parameters_are_left_out(sandbox: Sandbox) -> None:
    tests = """
import pytest
from mod import solve
@pytest.mark.parametrize("x", argvalues=[1, pytest.param(2, marks=pytest.mark.xfail)])
def test_a(x):
    assert solve(x) == 2
"""
    assert passed(sandbox, tests) == {"test_a[0], line 6": True}


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
