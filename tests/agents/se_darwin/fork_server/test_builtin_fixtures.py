from __future__ import annotations

from agents.se_darwin.sandbox import Sandbox
from tests.agents.se_darwin.suites import LIMITS, prepare


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
