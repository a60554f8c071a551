"""Fixtures in the shapes that projects have, in a real sandbox."""

from __future__ import annotations

import pytest

from agents.se_darwin.solution.request import EvolutionRequest

pytestmark = pytest.mark.process
PROGRAM = """
import logging
import warnings
log = logging.getLogger("shop")
def fetch():
    raise RuntimeError("no network")
def solve(x):
    log.warning("solving %s", x)
    if x < 0:
        warnings.warn("below zero", UserWarning, stacklevel=2)
    if x == 99:
        x = fetch()
    return x + 1
"""
TESTS = """
import logging
import warnings
from unittest import mock
from unittest.mock import patch
import pytest
import program
from program import solve

ended = []

@pytest.fixture
def base(request):
    request.addfinalizer(lambda: ended.append(request.node.name))
    return request.param * 10

@pytest.fixture(params=[1, 2], scope="module")
def step(request):
    return request.param

@pytest.fixture
def five(five):
    return five + 1

@pytest.fixture
def given(request):
    return getattr(request, "param", 4)

def test_default(given):
    assert solve(given) == 5

@pytest.mark.parametrize("given", [None], indirect=True)
def test_given_nothing(given):
    assert given is None and solve(1) == 2

@pytest.fixture
def doubled(request):
    return 2 * request.getfixturevalue("step")

@pytest.mark.parametrize("base, expected", [(1, 11), (2, 21)], indirect=["base"])
def test_indirect(base, expected):
    assert solve(base) == expected

@pytest.mark.parametrize("base", [3], indirect=True)
def test_all_indirect(base):
    assert ended == ["test_indirect[0]", "test_indirect[1]"]
    assert solve(base) == 31

def test_by_name(doubled, step):
    assert solve(doubled) == 2 * step + 1

class TestRequest:
    def test_request(self, request):
        assert request.cls is TestRequest
        assert request.instance is self
        assert solve(request.getfixturevalue("five")) == 6

    @pytest.fixture
    def own(self):
        return 7

    class TestInner:
        def test_inner(self, own, five):
            assert solve(own) == five + 3

    @patch("program.fetch", return_value=5)
    def test_method(self, fetch):
        assert solve(99) == 6
        fetch.assert_called_once_with()

@mock.patch.object(program, "log")
@patch("program.fetch")
def test_mocks(fetch, log, step):
    fetch.return_value = step
    assert solve(99) == step + 1
    log.warning.assert_called_once_with("solving %s", 99)

@patch("program.fetch", new=lambda: 7)
def test_given():
    assert solve(99) == 8

def test_log(caplog):
    solve(1)
    assert caplog.messages == ["solving 1"]
    assert caplog.record_tuples == [("shop", logging.WARNING, "solving 1")]
    assert caplog.text.startswith("WARNING  shop:")
    caplog.clear()
    with caplog.at_level(logging.ERROR, logger="shop"):
        solve(2)
    assert caplog.records == []
    with caplog.filtering(lambda record: record.args != (5,)):
        solve(5)
        solve(6)
    assert [each.args for each in caplog.get_records("call")] == [(6,)]
    caplog.clear()
    caplog.set_level("ERROR")
    solve(3)
    assert not caplog.messages
    assert solve(4) == 5

def test_levels():
    assert logging.getLogger().level == logging.WARNING
    assert solve(0) == 1

def test_warnings(recwarn):
    assert solve(-1) == 0
    assert [str(each.message) for each in recwarn] == ["below zero"]
    warnings.warn("other", DeprecationWarning)
    assert len(recwarn) == len(recwarn.list) == 2
    assert str(recwarn.pop(UserWarning).message) == "below zero"
    assert recwarn[0].category is recwarn.pop().category is DeprecationWarning
    with pytest.raises(AssertionError):
        recwarn.pop(UserWarning)
    with pytest.warns(UserWarning, match="below"):
        solve(-2)
"""
LEFT_OUT = """
def test_unknown(request):
    assert solve(1) == 2
    request.getfixturevalue("nothing")

def test_option(request):
    assert solve(1) == request.config.getoption("two")

def test_plugin(mocker):
    assert solve(1) == 2

def test_set_up(caplog):
    assert solve(1) == 2
    assert caplog.get_records("setup") == []
"""


def test_fixtures_as_projects_have_them() -> None:
    request = EvolutionRequest(
        code=PROGRAM,
        function="solve",
        test_code=TESTS + LEFT_OUT,
        conftests=("import pytest\n@pytest.fixture\ndef five():\n    return 4\n",),
    )
    with request.sandbox() as sandbox:
        task = request.task(sandbox, 5.0)
        wrong = PROGRAM.replace('"solving %s", x', '"solving: %s", x')
        programs = [(frozenset(), PROGRAM), (frozenset(), wrong)]
        given, other = task.screen(sandbox, programs)
        [alone] = task.evaluate(sandbox, programs[:1])
    assert task.suite is not None
    assert task.suite.within
    assert [reason.partition(":")[0] for reason in task.suite.left_out] == [
        "test_plugin needs mocker",
        "test_unknown uses the fixture nothing, which the sandbox does not offer",
        "test_option uses request.config, which the sandbox does not offer",
        "test_set_up uses caplog.get_records('setup'), which the sandbox does not offer",
    ]
    assert given.fixed
    assert "TestRequest.TestInner.test_inner, line 64" in task.check_names
    assert alone.passed == given.passed
    failed = [name for name, ok in zip(task.check_names, other.passed, strict=True) if not ok]
    assert {name.partition(",")[0] for name in failed} == {
        "test_mocks[0]",
        "test_mocks[1]",
        "test_log",
    }
