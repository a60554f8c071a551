"""Effects measured in the real sandbox."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from agents.se_darwin.edits import Edit, EditSpace
from agents.se_darwin.effects import Effect, measure_effects
from agents.se_darwin.sandbox import Limits, Sandbox, TestCase
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks import RepairTask

pytestmark = pytest.mark.process

LARGER = "def larger(a, b):\n    if a < b:\n        return a\n    return b\n"
SHELF = """
NOTHING = object()


class Shelf:
    def __init__(self, items):
        self.__items = items

    def take(self, index=NOTHING):
        if index is NOTHING:
            index = 0
        if index > len(self.__items):
            return None
        return self.__items.pop(index)
"""
SHELF_TESTS = """
from shelf import Shelf


def test_take():
    assert Shelf([1, 2]).take() == 1
    assert Shelf([1, 2]).take(1) == 2
    assert Shelf([1, 2]).take(2) is None
"""
LIMITS = Limits(cpu_seconds=0.5, wall_seconds=5.0)


def make_task(code: str, *cases: tuple[tuple[object, ...], object]) -> RepairTask:
    function = code.partition("def ")[2].partition("(")[0]
    return RepairTask(
        name=f"program.{function}",
        function=function,
        module=None,
        space=EditSpace(code, function),
        tests=tuple(TestCase.returning(arguments, value) for arguments, value in cases),
        limits=LIMITS,
    )


def measure(
    task: RepairTask, sandbox: Sandbox, first: tuple[Edit, ...] = (), kind: str = ""
) -> dict[str, Effect]:
    """Measure the edits *first*, then the others of that *kind*, with time for busy machines."""
    [given] = task.evaluate(sandbox, [(frozenset(), task.space.source)])
    others = [each for each in task.space.edits if kind in ("", each.kind)]
    edits = [*first, *(each for each in others if each not in first)]
    found = measure_effects(task, sandbox, given, edits, seconds=60.0)
    return {str(edit).partition(": ")[2]: effect for edit, effect in found.items()}


def test_effects_are_shares_of_failing_and_passing_checks(sandbox: Sandbox) -> None:
    task = make_task(LARGER, ((1, 2), 2), ((3, 1), 3), ((1, 1), 1), ((-2, -2), -2))
    effects = measure(task, sandbox)
    repair, useless = effects["comparison Lt -> Gt"], effects["comparison Lt -> LtE"]
    assert (repair.failing, repair.passing) == (1.0, 0.0)
    assert (useless.failing, useless.passing) == (0.0, 1.0)
    assert effects["variable b -> a"].failing in (0.5, 1.0)
    assert effects["comparison Lt -> Gt"].same_as != effects["comparison Lt -> NotEq"].same_as


def test_a_list_of_one_shared_list_is_not_that_of_several(sandbox: Sandbox) -> None:
    code = "def rows(n):\n    found = [[]] * n\n    found[0].append(n)\n    return found\n"
    effects = measure(make_task(code, ((2,), [[2], []])), sandbox, kind="container")
    assert effects["container [[]] * n -> [[] for _ in range(n)]"].failing == 1.0


def test_effects_of_further_edits_are_those_in_the_edited_program(sandbox: Sandbox) -> None:
    code = "def larger(a, b):\n    if a > a:\n        return a - 1\n    return b\n"
    task = make_task(code, ((1, 2), 2), ((3, 1), 3), ((5, 2), 5))
    both = {task.space.program({edit}): edit for edit in task.space.edits}
    condition = both[task.space.source.replace("a > a", "a > b")]
    second = both[task.space.source.replace("a - 1", "a")]
    programs = [frozenset[Edit](), frozenset({condition})]
    given, edited = task.evaluate(sandbox, [(each, task.space.program(each)) for each in programs])
    assert edited.passed == given.passed == (True, False, False)
    effect = measure_effects(task, sandbox, given, [second])[second]
    assert (effect.failing, effect.is_reached) == (0.0, False)
    effect = measure_effects(task, sandbox, edited, [second])[second]
    assert (effect.failing, effect.passing, effect.is_reached) == (1.0, 0.0, True)


def test_a_program_that_passes_has_no_effects(sandbox: Sandbox) -> None:
    assert measure(make_task(LARGER, ((1, 1), 1)), sandbox) == {}


def test_methods_see_their_private_names_and_the_identity_of_globals(sandbox: Sandbox) -> None:
    request = EvolutionRequest(
        code=SHELF, function="Shelf.take", module="shelf", test_code=SHELF_TESTS
    )
    with request.sandbox() as own:
        effects = measure(request.task(own, 5.0), own)
    repair = effects["comparison Gt -> GtE"]
    assert (repair.failing, repair.passing) == (1.0, 0.0)
    # `index is NOTHING` holds in the first test alone, so it is known what this default does
    assert effects["constant 0 -> 1"].failing == 0.0
    assert effects["constant 0 -> 1"].passing == 0.5
    assert effects["constant 0 -> -1"].same_as != effects["constant 0 -> 1"].same_as


def test_an_edit_that_ends_the_process_costs_itself_alone(sandbox: Sandbox) -> None:
    code = (
        "def add(n, limit):\n    total = sum(range(10 ** n))\n"
        "    if total < limit:\n        return 0\n    return total\n"
    )
    task = make_task(code, ((1, 45), 0), ((1, 99), 0))
    [endless] = [
        each for each in task.space.edits if str(each).endswith("line 2: variable n -> limit")
    ]
    began = time.monotonic()
    effects = measure(task, sandbox, (endless,))
    assert time.monotonic() - began < 60.0
    assert "variable n -> limit" not in effects
    assert (effects["comparison Lt -> LtE"].failing, effects["comparison Lt -> LtE"].passing) == (
        1.0,
        0.0,
    )


HOSTILE = {
    "attributes": "class Odd:\n    def __getattr__(self, name):\n        raise RuntimeError\n",
    "repr": "class Odd:\n    def __repr__(self):\n        while True:\n            pass\n",
    "reduce": "class Odd:\n    def __reduce_ex__(self, _):\n        raise SystemExit\n",
    "equal": "class Odd:\n    def __eq__(self, other):\n        raise KeyboardInterrupt\n",
    "large": "def Odd():\n    return [0] * 5_000_000\n",
    "many": "def Odd():\n    return [[str(n)] for n in range(200_000)]\n",
    "generator": "def Odd():\n    return (n for n in [1, 2])\n",
    "endless": "def Odd():\n    import itertools\n    return itertools.count()\n",
    "cycle": "def Odd():\n    it = []\n    it.append(it)\n    return it\n",
    "deep": "def Odd():\n    it = []\n    for _ in [0] * 9000:\n        it = [it]\n    return it",
    "exit": "class Odd:\n    def __reduce_ex__(self, _):\n        import os\n        os._exit(0)\n",
    "forges": """
import os
class Odd:
    def __reduce_ex__(self, _):
        lines = '5', '[]', '["effect", "x"]', '["checks", -1, 1]', '[' * 9999
        for number in range(3, 64):
            try:
                os.write(number, '\\n'.join([*lines, '']).encode())
            except OSError:
                pass
        raise TypeError
""",
}


@pytest.mark.parametrize("odd", HOSTILE)
def test_odd_variables_cost_their_statements_at_most(sandbox: Sandbox, odd: str) -> None:
    code = (
        f"def larger(a, b):\n    odd = Odd()\n    if a < b:\n        return a\n    return b\n\n"
        f"{HOSTILE[odd]}"
    )
    task = make_task(code, ((1, 2), 2), ((3, 1), 3), ((1, 1), 1))
    began = time.monotonic()
    effects = measure(task, sandbox, kind="comparison")
    assert time.monotonic() - began < 60.0
    repair = effects.get("comparison Lt -> Gt")
    if odd == "exit":  # the program ends while its variables are copied
        assert repair is None
    else:
        assert repair is not None
        assert (repair.failing, repair.passing) == (1.0, 0.0)


def test_a_call_that_ends_python_fails_alone(sandbox: Sandbox) -> None:
    code = LARGER.replace(":\n", ":\n    if a == b:\n        raise SystemExit\n", 1)
    task = make_task(code, ((1, 1), 1), ((1, 2), 2), ((3, 1), 3))
    assert measure(task, sandbox)["comparison Lt -> Gt"].failing == pytest.approx(2 / 3)


def test_nothing_is_known_where_no_state_could_be_kept(sandbox: Sandbox) -> None:
    code = LARGER.replace("(a, b):", "(a, b, c, d, e):")
    small = ["x"] * 3
    large = ["x" * 9000, "y" * 9000, "z" * 9000]  # together more than a copy may be
    cases = ((1, 2), 2), ((3, 1), 3), ((1, 1), 1)
    for more, is_known in ((small, True), (large, False)):
        task = make_task(code, *(((*arguments, *more), value) for arguments, value in cases))
        effects = measure(task, sandbox)
        assert ("comparison Lt -> Gt" in effects) == is_known


FIRST_ABOVE = """
def first_above(values, limit):
    for value in values:
        if value > limit:
            return value
    return None
"""


@pytest.mark.parametrize(("place", "is_known"), [(11, True), (700, False)])
def test_what_a_later_turn_of_a_loop_would_change_is_seen_or_not_known(
    sandbox: Sandbox, place: int, is_known: bool
) -> None:
    values = [0] * place + [5] + [0] * 30
    task = make_task(FIRST_ABOVE, ((values, 5), 5), (([9], 5), 9), (([1], 5), None))
    effects = measure(task, sandbox)
    repair = effects.get("comparison Gt -> GtE")
    if is_known:
        assert repair is not None
        assert (repair.failing, repair.passing) == (1.0, 0.0)
    else:
        assert repair is None
    assert effects["comparison Gt -> Lt"].failing == 1.0


def test_arguments_of_exceptions_that_the_program_raises_are_compared(sandbox: Sandbox) -> None:
    code = (
        "import sys\n\ndef stop(number, text, other):\n    if number:\n        sys.exit(3)\n"
        "    if text:\n        raise ValueError(5)\n    return None + other\n"
    )
    effects = measure(make_task(code, ((1, "", 1), 0), ((0, "x", 1), 0), ((0, "", 1), 0)), sandbox)
    for name in ("constant 3 -> 4", "constant 5 -> 6"):
        assert effects[name].failing == pytest.approx(1 / 3)
    # that message is Python's own, and another one repairs nothing
    assert effects["variable other -> text"].failing == 0.0


def test_it_matters_whether_an_object_is_new(sandbox: Sandbox) -> None:
    code = (
        "def both(base, more):\n    found = base\n    found.update(more)\n    return base, found\n"
    )
    task = make_task(code, (({"a": 1}, {"b": 2}), ({"a": 1}, {"a": 1, "b": 2})))
    effects = measure(task, sandbox)
    assert effects["parameter_normalised before -> base = base.copy()"].failing == 1.0


def test_a_variable_without_text_costs_the_check_that_has_it(sandbox: Sandbox) -> None:
    code = (
        "def more(number, deep):\n    items = []\n    if deep:\n        items.append(items)\n"
        "    number = number + 7\n    return number\n"
    )
    effects = measure(
        make_task(code, ((1, False), 9), ((1, True), 9), ((2, True), 9)), sandbox, kind="constant"
    )
    effect = effects["constant 7 -> 8"]
    assert (effect.failing, effect.passing, effect.same_as) == (1.0, 0.0, None)


def test_a_program_that_waits_for_ever_takes_no_time_of_the_search(sandbox: Sandbox) -> None:
    code = (
        "import time\n\ndef wait(a, b):\n    while a < b:\n        time.sleep(0.05)\n    return a\n"
    )
    task = replace(
        make_task(code, ((2, 1), 2), ((1, 2), 2)), limits=replace(LIMITS, wall_seconds=0.3)
    )
    began = time.monotonic()
    assert measure(task, sandbox) == {}
    assert time.monotonic() - began < 30.0
