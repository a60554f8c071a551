from __future__ import annotations

import ast
from dataclasses import replace

import pytest

from agents.se_darwin.edits import EditSpace
from agents.se_darwin.sandbox import Sandbox, TestCase
from agents.se_darwin.solution.request import EvolutionRequest
from agents.se_darwin.tasks import RepairTask
from agents.se_darwin.tasks.set_order import HASH_SEEDS, uses_sets
from benchmarks.se_darwin.set_order import broken_seeds, order_bugs


@pytest.mark.parametrize(
    ("source", "uses"),
    [
        ("x = {1, 2}", True),
        ("x = {a for a in b}", True),
        ("x = frozenset(y)", True),
        ("x = a.keys() - b", True),
        ("x |= a.keys()", True),
        ("x = a.union(b)", True),
        ("x = {1: 2}", False),
        ("x = a.keys()", False),
        ("x = [set_of_one]", False),
    ],
)
def test_sets_are_noticed(source: str, uses: bool) -> None:
    assert uses_sets(source) is uses


def test_a_program_that_passes_under_one_order_only_is_no_repair() -> None:
    lucky = "def solve(words):\n    return list(set(words))"
    words = ["b", "a", "c"]
    with Sandbox() as sandbox:
        [execution] = sandbox.run([lucky], [TestCase.returning((words,), [])], function="solve")
        output = execution.outputs[0]
        assert output is not None
        test = TestCase(arguments=(words,), kind="value", expected=output.text)
        task = RepairTask(
            name="order",
            function="solve",
            module=None,
            space=EditSpace("def solve(words):\n    return words", "solve"),
            tests=(test,),
        )
        programs = [(frozenset(), lucky)]
        [without] = task.screen(sandbox, programs)  # type: ignore[arg-type]
        assert without.fixed
        [found] = replace(task, hash_seeds=HASH_SEEDS).screen(sandbox, programs)  # type: ignore[arg-type]
        assert not found.fixed
        assert found.depends_on_order
        others = [sandbox.with_hash_seed(seed) for seed in HASH_SEEDS]
        assert others == [sandbox.with_hash_seed(seed) for seed in HASH_SEEDS]
    with pytest.raises(RuntimeError, match="closed"):
        others[0].run([lucky], [test], function="solve")


def test_sets_that_the_tests_give_to_a_program_count() -> None:
    words = {"ab", "blue", "cd"}
    lucky = "def solve(words):\n    return list(words)"
    with Sandbox() as sandbox:
        [execution] = sandbox.run([lucky], [TestCase.returning((words,), [])], function="solve")
        output = execution.outputs[0]
        assert output is not None
        task = RepairTask(
            name="order",
            function="solve",
            module=None,
            space=EditSpace("def solve(words):\n    return words", "solve"),
            tests=(TestCase(arguments=(words,), kind="value", expected=output.text),),
            hash_seeds=HASH_SEEDS[:2],
        )
        [found] = task.screen(sandbox, [(frozenset(), lucky)])
        assert found.depends_on_order
        tests = "from program import solve\ndef test_a():\n    assert solve({'ab', 'blue'}) == %s\n"
        request = EvolutionRequest(
            code="def solve(words):\n    return words",
            function="solve",
            test_code=tests % [word for word in ast.literal_eval(output.text) if word != "cd"],
        )
        [found] = request.task(sandbox, 5.0).screen(sandbox, [(frozenset(), lucky)])
        assert found.depends_on_order


def test_a_repair_that_reads_a_set_of_a_library_runs_under_three_orders() -> None:
    words = ["json", "abc", "zlib", "queue", "copy", "heapq"]
    lucky = "import sys\ndef solve(x):\n    return [n for n in sys.stdlib_module_names if n in x]"
    assert not uses_sets(lucky)
    given = lucky.replace("return ", "return 0 and ")
    with Sandbox(modules=["sys"]) as sandbox:
        [execution] = sandbox.run([lucky], [TestCase.returning((words,), [])], function="solve")
        output = execution.outputs[0]
        assert output is not None
        task = RepairTask(
            name="order",
            function="solve",
            module=None,
            space=EditSpace(given, "solve"),
            tests=(TestCase(arguments=(words,), kind="value", expected=output.text),),
            hash_seeds=HASH_SEEDS,
        )
        right = lucky.replace("return ", f"return {output.text} or ")
        found, kept = task.screen(sandbox, [(frozenset(), lucky), (frozenset(), right)])
    assert found.depends_on_order
    assert kept.fixed
    assert (found.order_runs, kept.order_runs) == (1, 2)


def test_the_benchmark_has_twenty_functions_that_depend_on_order() -> None:
    bugs = list(order_bugs())
    assert len(bugs) == 20
    assert broken_seeds(bugs[0], bugs[0].code), "the given program fails under some seeds"
    assert broken_seeds(bugs[0], "def tags(words):\n    return sorted(set(words))\n") == []
