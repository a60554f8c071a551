import pytest

from agents.se_darwin.collection import CORPUS_LIMITS
from agents.se_darwin.sandbox import Sandbox, TestCase
from benchmarks.se_darwin.caching_sandbox import CachingSandbox

TESTS = (TestCase.returning((3,), 9), TestCase.returning((-1,), 1))
PROGRAMS = [
    "def f(x):\n    return x * x",
    "def f(x):\n    raise ValueError(x)",
    "def f(x):\n    return object()",
    "def f(x):\n    while x < 0:\n        pass\n    return x * x",
]


def test_a_cached_result_equals_the_sandboxs(caching_sandbox):
    with Sandbox(modules=["math"], limits=CORPUS_LIMITS) as plain:
        expected = plain.run(PROGRAMS, TESTS, function="f", coverage=True)
    before = caching_sandbox.executed
    first = caching_sandbox.run(PROGRAMS, TESTS, function="f", coverage=True)
    again = caching_sandbox.run(PROGRAMS[::-1], TESTS, function="f", coverage=True)[::-1]
    assert caching_sandbox.executed == before + len(PROGRAMS)
    assert [one.outputs for one in again] == [one.outputs for one in expected]
    assert [(one.outputs, one.end) for one in again] == [(one.outputs, one.end) for one in first]
    assert first[3].outputs[1] is None


@pytest.mark.process
def test_cached_results_outlive_the_process_and_depend_on_the_request(tmp_path):
    def run(tests, **how):
        path = tmp_path / "executions.sqlite"
        sandbox = CachingSandbox(path, modules=["math"], limits=CORPUS_LIMITS, parallel=1)
        before = sandbox.executed  # its own escape check is not cached
        try:
            sandbox.run(PROGRAMS[:2], tests, function="f", **how)
            return sandbox.executed - before
        finally:
            sandbox.close()

    assert run(TESTS) == 2
    assert run(TESTS) == 0
    assert run(TESTS[:1]) == 2
    assert run(TESTS, coverage=True) == 2
    assert run(TESTS, module="math") == 2
